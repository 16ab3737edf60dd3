"""The first tensor that was not finite: found for every injected fault, and never where there is none."""

import itertools
import math
import random
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from monitorch import PyTorchInspector
from monitorch.engine import step_norms
from monitorch.engine.origin import Origin
from monitorch.lens import NonFinite, OutputGradientGeometry, OutputNorm, ParameterGradientGeometry, ParameterNorm
from monitorch.watching.lens_sets import standard_lenses
from tests.marks import slow

STEPS = 4
SEEDS = 4


def broken(x, number):
    """``x`` with a number added to one element, so that gradients flow through it as before."""
    fault = torch.zeros_like(x, memory_format=torch.contiguous_format)
    fault.view(-1)[0] = number
    return x + fault


class Adam(torch.optim.Adam):
    """Breaks one number of a parameter in its step, if it is told to."""

    broken = None

    def step(self, closure=None):
        super().step(closure)
        if self.broken is not None:
            with torch.no_grad():
                self.broken.view(-1)[0] = math.inf
        self.broken = None


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(3, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x.view(-1, 1, 6, 6))))
        return self.fc(self.pool(F.gelu(self.conv2(x))).flatten(1))


class SmallTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 8, 0.1, "gelu", batch_first=True) for _ in range(1)
        )

    def forward(self, x):
        x = self.embed(x.view(-1, 6, 6))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def mlp():
    return nn.Sequential(nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))


MODELS = {"mlp": mlp, "cnn": SmallCNN, "transformer": SmallTransformer}


class Training:
    """Trains a small model while it is watched; :meth:`break_at` says what to break in the next step."""

    def __init__(self, make, lenses=None, **options):
        torch.manual_seed(0)
        self.model, self.faults, self.step, self.is_clipped = make(), {}, 0, False
        for name, module in self.model.named_modules():
            module.register_forward_hook(partial(self._inject, name))
        self.optimizer = Adam(self.model.parameters(), lr=0.01)
        lenses = standard_lenses(self.model, [self.optimizer], correlation="exact") if lenses is None else lenses
        options = {"visualizer": "dummy", "on_error": "raise", "optimizer": self.optimizer, **options}
        self.inspector = PyTorchInspector(lenses, module=self.model, **options)

    def _inject(self, name, module, args, output):
        where, number = self.faults.get(name, (None, 0))
        tensor = output[0] if isinstance(output, tuple) else output
        if where == "backward":
            tensor.register_hook(lambda gradient: broken(gradient, number))
        elif where == "forward":
            tensor = broken(tensor, number)
            return (tensor, *output[1:]) if isinstance(output, tuple) else tensor
        return None

    def break_at(self, where, layer, parameter=None, number=math.nan):
        if where == "step":
            self.optimizer.broken = self.model.get_submodule(layer).get_parameter(parameter)
        else:
            self.faults[layer] = where, number

    def train(self, steps=1):
        for _ in range(steps):
            self.step += 1
            self.optimizer.zero_grad()
            self.model(torch.randn(2, 36)).square().mean().backward()
            if self.is_clipped:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.faults.clear()

    @property
    def origin(self):
        return self.inspector.first_not_finite

    def events(self):
        return [event for event in self.inspector.state.events.kept() if event.kind == "not finite"]


def places(make):
    """What the standard lenses measure in a model, as places for faults: where, layer and parameter."""
    training = Training(make)
    training.train()
    engine = training.inspector.state.engine
    engine.settle()
    where = {"output": "forward", "output gradient": "backward", "update": "step"}
    seen = [meter for meter in engine.meters if meter.kind in where and meter.number in engine._seen]
    return list(dict.fromkeys((where[meter.kind], meter.name, meter.parameter_name) for meter in seen))


WHAT = {"forward": "output", "backward": "output gradient", "step": "update"}
PLACES = {name: places(make) for name, make in MODELS.items()}
CASES = [
    (name, place, seed) for name, found in PLACES.items() for place, seed in itertools.product(found, range(SEEDS))
]


def case_id(case):
    name, (where, layer, parameter), seed = case
    return f"{name}-{where}-{layer}.{parameter}-{seed}" if parameter else f"{name}-{where}-{layer}-{seed}"


def test_there_are_enough_faults():
    assert len(CASES) >= 200
    assert {where for _, (where, *_), _ in CASES} == {"forward", "backward", "step"}


def is_quick(case):
    """One seed for each place: clipped at every other one."""
    name, place, seed = case
    return seed == PLACES[name].index(place) % 2


@pytest.mark.parametrize("case", [case if is_quick(case) else slow(case) for case in CASES], ids=case_id)
def test_the_origin_of_an_injected_fault_is_right(case):
    name, (where, layer, parameter), seed = case
    choice = random.Random(case_id(case))
    step = choice.randint(2, STEPS - 1)
    training = Training(MODELS[name])
    training.is_clipped = bool(seed % 2)
    training.train(step - 1)
    assert training.origin is None
    training.break_at(where, layer, parameter)
    training.train(STEPS - step + 1)
    found = training.origin
    assert found[:6] == (step, where, WHAT[where], layer, parameter, step - 1)
    assert "not measured" not in found.text
    if where == "forward":
        assert found.text.endswith("its inputs were finite")
    (event,) = training.events()
    assert (event.step, event.severity, event.text) == (step, "error", found.text)


class Residual(nn.Module):
    """Its operation divides by zero when it is told to; ``scores`` puts out -Inf, as masks do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"first": nn.Linear(36, 4), "second": nn.Linear(4, 4)})
        self.scores, self.divisor = Masked(), 1.0

    def forward(self, x):
        hidden = self.inner["first"](x)
        return self.inner["second"](hidden / self.divisor) * self.scores(hidden).softmax(-1)


class Masked(nn.Module):
    def forward(self, x):
        return x.masked_fill(torch.tensor([True, False, False, False]), -math.inf)


def of_everything():
    return [
        OutputNorm(include=(nn.Linear, Masked)),
        OutputGradientGeometry(),
        ParameterGradientGeometry(parameters="all"),
        ParameterNorm(parameters="all"),
    ]


def test_an_operation_between_layers_is_named_by_what_is_around_it():
    training = Training(Residual, of_everything())
    training.train(2)
    training.model.divisor = 0.0
    training.train()
    assert training.origin[:6] == (3, "forward", "operation", "inner", None, 2)
    assert "an operation in layer 'inner', after layer 'inner.first', was the first" in training.origin.text


@pytest.mark.parametrize("steps", [1, 3])
def test_outputs_of_minus_infinity_with_finite_gradients_are_no_fault_and_hide_none(steps):
    training = Training(Residual, of_everything())
    training.train(steps)
    training.inspector.tick()
    training.train(steps)
    assert training.origin is None
    training.break_at("backward", "inner.second")
    training.train(2)
    assert training.origin[:6] == (2 * steps + 1, "backward", "output gradient", "inner.second", None, 2 * steps)
    assert len(training.events()) == 1


@pytest.mark.parametrize("is_ever_finite", [False, True])
def test_if_only_outputs_are_measured_one_that_was_finite_before_is_a_fault(is_ever_finite):
    training = Training(mlp, [OutputNorm(include=nn.Linear)])
    training.train(int(is_ever_finite))
    training.break_at("forward", "0", number=math.inf)
    training.train()
    found = training.origin
    assert found is None if not is_ever_finite else found[:4] == (2, "forward", "output", "0")


def test_data_that_are_not_finite_are_named():
    training = Training(mlp)
    training.train()
    training.optimizer.zero_grad()
    training.model(torch.full((2, 36), math.nan)).sum().backward()
    training.optimizer.step()
    assert training.origin[:4] == (2, "forward", "input", "0")


def test_a_parameter_that_is_changed_between_steps_is_named():
    training = Training(mlp)
    training.train(3)
    with torch.no_grad():
        training.model[2].weight[0, 0] = math.inf
    training.train()
    assert training.origin[:6] == (3, "step", "parameter", "2", "weight", 3)


def test_a_parameter_is_found_at_a_tick_even_if_no_step_is_measured():
    training = Training(mlp, [ParameterNorm(parameters="all")], every=100)
    for _ in range(3):
        training.train(2)
        training.inspector.tick()
    training.break_at("step", "2", "bias")
    training.train(2)
    training.inspector.tick()
    found = training.inspector.first_not_finite
    assert found[:2] == (8, "step")
    assert (found.what, found.last_good) == ("parameter", 6)
    assert found.text.endswith("Steps 7 to 8 were not measured: it may have begun there")


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("is_clipped", [False, True])
def test_the_gradient_of_one_parameter_is_named_unless_clipping_spreads_it(name, is_clipped):
    training = Training(mlp)
    training.train()
    training.is_clipped = is_clipped
    training.model[2].get_parameter(name).register_hook(lambda gradient: broken(gradient, math.nan))
    training.train()
    found = training.origin
    assert (found.step, found.where, found.what) == (2, "backward", "gradient")
    assert ("as after clipping" in found.text) is is_clipped
    if not is_clipped:
        assert (found.layer, found.parameter) == ("2", name)


@pytest.mark.parametrize("is_clipped", [False, True])
def test_the_backward_pass_of_the_last_layer_is_named_if_gradients_are_read_before_they_are_clipped(is_clipped):
    training = Training(mlp, gradient="before_clip")
    training.train()
    training.is_clipped = is_clipped
    for parameter in training.model[4].parameters():
        parameter.register_hook(lambda gradient: broken(gradient, math.nan))
    training.break_at("backward", "3")
    training.train()
    assert training.origin[:4] == (2, "backward", "gradient", "4")
    assert "clipping" not in training.origin.text


def test_a_broken_loss_is_where_backward_begins():
    training = Training(mlp)
    training.train()
    training.optimizer.zero_grad()
    (training.model(torch.randn(2, 36)).sum() * math.nan).backward()
    training.optimizer.step()
    assert training.origin[:4] == (2, "backward", "output gradient", "4")
    assert training.origin.text.endswith("so look at the loss")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_steps_that_a_scaler_skips_are_no_faults(is_known, where):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    training = Training(mlp, grad_scaler=scaler if is_known else None)
    context = pytest.warns(UserWarning, match="GradScaler") if not is_known else nullcontext()
    with context:
        for step in range(1, 5):
            if step == 3:
                training.break_at(where, "2", number=math.inf)
            training.optimizer.zero_grad()
            scaler.scale(training.model(torch.randn(2, 36)).square().mean()).backward()
            scaler.step(training.optimizer)
            scaler.update()
            training.faults.clear()
            if is_known:
                assert training.origin is None
    assert training.origin is None
    training.break_at("step", "2", "weight")
    scaler.scale(training.model(torch.randn(2, 36)).square().mean()).backward()
    scaler.step(training.optimizer)
    assert training.origin[1:5] == ("step", "update", "2", "weight")


def test_a_step_that_is_never_finished_is_judged_at_the_end():
    training = Training(mlp)
    training.train(3)
    training.break_at("forward", "2")
    training.model(torch.randn(2, 36))  # the user stops here, because the loss is NaN
    training.inspector.detach()
    assert training.origin[:4] == (4, "forward", "output", "2")
    assert len(training.events()) == 1


def test_without_an_optimizer_steps_are_passes():
    training = Training(mlp, of_everything(), optimizer=None)
    training.train(2)
    training.break_at("backward", "2")
    training.train(2)
    assert training.origin[:4] == (3, "backward", "output gradient", "2")


def test_a_fault_in_one_of_several_passes_of_a_step():
    training = Training(mlp)
    training.train()
    for number in range(3):
        if number == 1:
            training.break_at("forward", "2")
        training.model(torch.randn(2, 36)).sum().backward()
        training.faults.clear()
    training.optimizer.step()
    assert training.origin[:4] == (2, "forward", "output", "2")


def test_evaluation_is_no_part_of_training():
    training = Training(mlp, [OutputNorm(record_eval=True, include=nn.Linear), ParameterGradientGeometry()])
    training.train()
    training.break_at("forward", "2")
    training.model.eval()
    with torch.no_grad():
        training.model(torch.randn(2, 36))
    training.model.train()
    training.faults.clear()
    training.train(2)
    assert training.origin is None


def test_it_is_kept_for_good_and_told_once():
    training = Training(mlp)
    training.break_at("forward", "2")
    training.train(2)
    found = training.origin
    for _ in range(3):
        training.train()
        training.inspector.tick()
    assert training.origin is found
    assert len(training.events()) == 1
    later = Training(mlp)
    later.inspector.load_state_dict(training.inspector.state_dict())
    later.break_at("forward", "0")
    later.train(2)
    assert later.origin == found
    assert isinstance(later.origin, Origin)
    assert not later.events()
    later.inspector.attach(mlp())
    assert later.origin is None


@pytest.mark.parametrize("has_norms", [False, True], ids=["checked", "norms on the device"])
@pytest.mark.parametrize("name", ["mlp", "cnn", slow("transformer")])
def test_faults_in_steps_that_are_not_observed_are_found_if_every_step_is_checked(name, has_norms, monkeypatch):
    if has_norms:
        monkeypatch.setattr(step_norms, "is_kept_on", lambda device: True)
        monkeypatch.setattr(step_norms, "SHARE", math.inf)
    cases = [case for case in CASES if case[0] == name and case[2] == 0]
    right = {where: [] for where in WHAT}
    for case in cases:
        _, (where, layer, parameter), _ = case
        step = random.Random(case_id(case)).randint(11, 19)
        training = Training(MODELS[name], None if has_norms else [], every=10)
        if not has_norms:
            training.inspector.lenses.append(NonFinite(training.optimizer))
            training.inspector.tick()
        training.train(step - 1)
        assert training.origin is None
        training.break_at(where, layer, parameter)
        training.train(2)
        found = training.origin
        assert (found.step, "not measured: " in found.text) == (step, False)
        if where == "step":
            right[where].append((found.where, found.layer, found.parameter) == (where, layer, parameter))
        elif where == "backward" and list(training.model.get_submodule(layer).parameters(recurse=False)):
            right[where].append((found.where, found.what, found.layer) == (where, "gradient", layer))
    for where in ("step", "backward"):
        assert len(right[where]) >= 3
        assert sum(right[where]) >= 0.9 * len(right[where])


def test_without_the_check_the_interval_is_right():
    training = Training(mlp, every=10)
    training.train(13)
    training.break_at("forward", "2")
    training.train(10)
    found = training.origin
    assert found.last_good == 10 < 14 <= found.step <= 20
    assert f"Steps 11 to {found.step - 1} were not measured" in found.text


class FaultInGraph(torch.autograd.Function):
    """Adds numbers to a tensor and to its gradient, also inside a compiled graph."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.save_for_backward(backward)
        return x + forward

    @staticmethod
    def backward(ctx, gradient):
        return gradient + ctx.saved_tensors[0], None, None


class FaultyLinear(nn.Linear):
    """A linear layer with a fault of its own, which is 0 until it is set."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("forward_fault", torch.zeros(()))
        self.register_buffer("backward_fault", torch.zeros(()))

    def forward(self, x):
        return FaultInGraph.apply(super().forward(x), self.forward_fault, self.backward_fault)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("where", ["forward", "backward", "step"])
@pytest.mark.parametrize("layer", ["0", "2"])
def test_the_origin_is_right_in_compiled_models(backend, where, layer):
    torch.compiler.reset()
    model = nn.Sequential(FaultyLinear(6, 5), nn.GELU(), FaultyLinear(5, 5), nn.GELU(), FaultyLinear(5, 2))
    optimizer = Adam(model.parameters(), lr=0.01)
    lenses = standard_lenses(model, [optimizer], correlation="exact")
    options = {"visualizer": "dummy", "on_error": "raise", "optimizer": optimizer}
    inspector = PyTorchInspector(lenses, module=model, **options)
    compiled = torch.compile(model, backend=backend)
    for step in range(1, 6):
        faulty = model.get_submodule(layer)
        if step == 3 and where == "step":
            optimizer.broken = faulty.weight
        elif step == 3:
            getattr(faulty, f"{where}_fault").fill_(math.nan)
        optimizer.zero_grad()
        compiled(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        faulty.forward_fault.zero_()
        faulty.backward_fault.zero_()
    found, what = inspector.first_not_finite, {"forward": "output", "backward": "gradient", "step": "update"}
    assert found[:4] == (3, where, what[where], layer)
    if where == "forward":
        before = "no layer was measured before it" if layer == "0" else "the output of layer '1'"
        assert before in found.text
