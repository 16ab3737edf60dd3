"""Facts about parameters at the steps of their optimizers, in loops that are right and in loops that are not."""

import math

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.engine.parameter_facts import Facts
from monitorch.lens import ParameterFacts
from tests.cut import Cut
from tests.numerical import checksum_oracle

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Told:
    """The facts about all parameters, in order."""

    def __init__(self, model, *optimizers, **options):
        self.facts, lens = [], ParameterFacts(optimizers)
        lens._preprocessors[0].process_fact = self.take
        known = {"optimizer": list(optimizers), "visualizer": "dummy", "on_error": "raise"} | options
        self.inspector = PyTorchInspector([lens], module=model, **known)

    def take(self, fact, names, numbers):
        step = self.inspector.state.step
        for name, number in zip(names, map(float, numbers), strict=True):
            self.facts.append((step, name, fact, number))

    def of(self, name, fact):
        """One fact of a parameter, step by step; None where it was not known."""
        steps = [step for step, known, what, _ in self.facts if (known, what) == (name, Facts._fields[-1])]
        found = {step: number for step, known, what, number in self.facts if (known, what) == (name, fact)}
        return [None if math.isnan(found.get(step, math.nan)) else found[step] for step in steps]


def loss(model):
    return model(X).square().mean()


def healthy(model, optimizer):
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()


def with_zeros(model, optimizer):
    optimizer.zero_grad(set_to_none=False)
    loss(model).backward()
    optimizer.step()


def accumulating(model, optimizer):
    for _ in range(3):
        loss(model).backward()
    optimizer.step()
    optimizer.zero_grad()


def stale(model, optimizer):
    loss(model).backward()
    optimizer.step()


def stale_accumulating(model, optimizer):
    for _ in range(3):
        loss(model).backward()
    optimizer.step()


def looking_first(model, optimizer):
    """A Hessian-vector product, which adds to no gradient, while the gradient of the last step is still there."""
    torch.autograd.grad(loss(model), list(model.parameters()))
    healthy(model, optimizer)


def closures(model, optimizer):
    def closure():
        optimizer.zero_grad()
        found = loss(model)
        found.backward()
        return found

    optimizer.step(closure)


@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (healthy, [1, 1, 1]),
        (with_zeros, [1, 1, 1]),
        (accumulating, [1, 1, 1]),
        (looking_first, [1, 1, 1]),
        (closures, [1, 1, 1]),
        (stale, [1, 0, 0]),
        (stale_accumulating, [1, 0, 0]),
    ],
)
def test_a_gradient_is_stale_if_it_was_never_empty_since_the_last_step(loop, expected, name):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told(model, optimizer)
    for _ in range(3):
        loop(model, optimizer)
    assert told.of(name, "was_empty") == expected


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.generator = nn.Linear(3, 1), nn.Linear(3, 3)


@pytest.mark.parametrize(("zeroes", "expected"), [((0, 1), (1, 1)), ((1,), (0, 1)), ((0,), (1, 0)), ((), (0, 0))])
def test_with_several_optimizers_each_counts_its_own_steps(zeroes, expected):
    gan = Gan()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (gan.critic, gan.generator)]
    told = Told(gan, *optimizers)
    for _ in range(3):
        for number, score in enumerate(
            (lambda: gan.critic(gan.generator(X).detach()), lambda: gan.critic(gan.generator(X)))
        ):
            if number in zeroes:
                optimizers[number].zero_grad()
            score().mean().backward()
            optimizers[number].step()
    assert told.of("critic.weight", "was_empty")[1:] == [expected[0]] * 2
    assert told.of("generator.weight", "was_empty")[1:] == [expected[1]] * 2
    assert told.of("critic.weight", "optimizer") == [0] * 3
    assert told.of("generator.weight", "optimizer") == [1] * 3


def test_what_was_not_observed_is_not_known():
    model = new_model()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.01), torch.optim.SGD(model[2].parameters(), lr=0.01)
    told = Told(model, first, second, every=lambda step: step in (4, 5, 6, 8))
    for step in range(1, 9):  # the second one steps after two micro-batches, the first one after each
        first.zero_grad()
        loss(model).backward()
        if step % 2 == 0:
            second.step()
            second.zero_grad()
        first.step()
    assert told.of("0.weight", "was_empty") == [1] * 4
    assert told.of("2.weight", "was_empty") == [None, 1, None]


def test_a_parameter_that_no_pass_reaches_says_nothing_about_its_gradient():
    model = new_model()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told(model, optimizer)
    for _ in range(3):
        healthy(model, optimizer)
    assert told.of("0.weight", "was_empty") == [None] * 3
    assert told.of("0.weight", "changed") == [None, 0, 0]
    assert told.of("0.bias", "changed") == [None, 1, 1]


def test_nor_does_one_that_a_function_of_the_user_has_no_gradient_for():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.kept = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x):
            return Cut.apply(self.cut(x)) + Cut.apply(self.kept.bias) + self.kept(x)

    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told(model, optimizer)
    for _ in range(2):
        healthy(model, optimizer)
    assert told.of("cut.weight", "was_empty") == [None] * 2
    assert told.of("kept.weight", "was_empty") == [1] * 2


def test_parameters_without_numbers_say_nothing_about_their_gradients():
    model = nn.Linear(3, 1, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told(model, optimizer)
    for _ in range(2):
        model(torch.ones(2, 3, device="meta")).sum().backward()
        optimizer.step()
    assert told.of("weight", "was_empty") == [None] * 2


def test_sparse_gradients_are_known_to_be_empty_if_there_are_none():
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = Told(model, optimizer)
    for _ in range(3):
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert told.of("weight", "was_empty") == [1, None, None]
    assert told.of("weight", "changed") == [None, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "rate", "changed"),
    [
        (torch.float32, 1.0, 1),
        (torch.float32, 0.0, 0),
        (torch.float32, 2.0**-23, 1),  # one unit in the last place
        (torch.float32, 2.0**-26, 0),
        (torch.bfloat16, 2.0**-7, 1),
        (torch.bfloat16, 2.0**-12, 0),  # swallowed
    ],
)
@pytest.mark.parametrize("size", [1, 50_001])
def test_a_change_of_one_bit_is_a_change(dtype, rate, changed, size):
    model = nn.ParameterList([torch.ones(size, dtype=dtype)])
    mask = torch.zeros(size, dtype=dtype)
    mask[-1] = -1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    told = Told(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        (model[0] * mask).sum().backward()
        optimizer.step()
    assert told.of("0", "changed") == [None, changed, changed]
    assert told.of("0", "checksum")[-1] == checksum_oracle.shown(model[0].detach().view(torch.uint8).numpy())


def test_a_parameter_in_no_optimizer_is_told_of_at_the_steps_of_the_first():
    model = new_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.01)
    told = Told(model, optimizer)
    for _ in range(3):
        healthy(model, optimizer)
    facts = ("optimizer", "group", "rate", "changed", "was_empty")
    assert [told.of("2.weight", fact)[-1] for fact in facts] == [-1, -1, None, 0, 0]  # nobody drops its gradient
    assert [told.of("0.weight", fact)[-1] for fact in facts] == [0, 0, 0.01, 1, 1]


@pytest.mark.parametrize("make", [float, torch.tensor])
def test_group_and_rate_are_those_of_the_step(make):
    model = new_model()
    groups = [{"params": [model[0].weight]}, {"params": [*model[2].parameters()], "lr": make(0.5)}]
    optimizer = torch.optim.SGD(groups, lr=make(0.25))
    told = Told(model, optimizer)
    for factor in (1.0, 0.5):
        healthy(model, optimizer)
        for group in optimizer.param_groups:  # as schedulers do
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].mul_(factor / 2)
            else:
                group["lr"] *= factor / 2
    optimizer.add_param_group({"params": [model[0].bias], "lr": 0.125})
    healthy(model, optimizer)
    assert told.of("0.weight", "rate") == [0.25, 0.125, 0.03125]
    assert told.of("2.bias", "rate") == [0.5, 0.25, 0.0625]
    assert told.of("2.bias", "group") == [1, 1, 1]
    assert told.of("0.bias", "rate") == [None, None, 0.125]
    assert told.of("0.bias", "group") == [-1, -1, 2]


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_is_skipped_says_nothing_about_changes(fused):
    model, scaler = new_model(), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    told = Told(model, optimizer, grad_scaler=scaler)
    for factor in (1.0, 1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(loss(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert told.of("0.weight", "changed") == ([None, 1, None, 1] if fused else [None, 1, 1])
    assert told.inspector.first_not_finite is None


def test_steps_inside_backward_are_those_of_each_parameter():
    model = new_model()
    optimizers = {name: torch.optim.SGD([own], lr=0.01) for name, own in model.named_parameters()}
    for name, own in model.named_parameters():

        def step(parameter, name=name):
            optimizers[name].step()
            optimizers[name].zero_grad()

        own.register_post_accumulate_grad_hook(step)
    told = Told(model, *optimizers.values())
    for _ in range(3):
        loss(model).backward()
    for number, name in enumerate(optimizers):
        assert told.of(name, "was_empty")[-2:] == [1, 1]
        assert told.of(name, "changed")[-2:] == [1, 1]
        assert set(told.of(name, "optimizer")) == {number}


def test_replaced_parameters_and_tensors_are_followed():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told(model, optimizer)
    healthy(model, optimizer)
    model[2].weight = nn.Parameter(torch.zeros(1, 4))
    optimizer.add_param_group({"params": [model[2].weight]})
    torch.utils.swap_tensors(model[0].bias, nn.Parameter(torch.ones(4)))
    for _ in range(2):
        healthy(model, optimizer)
    assert told.of("2.weight", "was_empty") == [1, 1, 1]
    assert told.of("2.weight", "group") == [0, 1, 1]
    assert told.of("0.bias", "was_empty") == [1, 1, 1]
