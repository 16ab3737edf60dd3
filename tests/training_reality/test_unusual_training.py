"""Ways of using a model that are not plain training steps, and loops that torch's hooks do not see whole."""

import contextlib
import math
import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, functionalize, grad, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import prune as pruning
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from monitorch import MonitorchWarning, PyTorchInspector, lens, watch

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def new_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))


def all_lenses(optimizer=None):
    found = [
        lens.OutputNorm(include=nn.Linear, inplace=False),
        lens.OutputActivation(inplace=False),
        lens.OutputGradientGeometry(inplace=False),
        lens.ParameterGradientGeometry(inplace=False),
    ]
    return found if optimizer is None else [*found, lens.ParameterUpdateGeometry(optimizer, inplace=False)]


@pytest.fixture
def inspect():
    """Build inspectors that live as long as the test and hide no error."""
    kept = []

    def build(model, lenses, **options):
        kept.append(PyTorchInspector(lenses, module=model, **{"visualizer": "dummy", "on_error": "raise", **options}))
        return kept[-1]

    return build


def samples(lenses):
    """All samples by lens, statistic and layer."""
    return {
        (type(one).__name__, number, statistic, layer): list(values)
        for one in lenses
        for number, preprocessor in enumerate(one._preprocessors)
        for statistic in preprocessor.statistics
        for layer, values in preprocessor.series(statistic).items()
    }


# passes that are not recorded


def loss_of(model, x):
    return model(x).square().mean()


def by_parameters(model):
    values = {name: value.detach() for name, value in model.named_parameters()}
    return values, lambda values, x: functional_call(model, values, (x,)).square().mean()


def per_sample_gradients(model):
    values, loss = by_parameters(model)
    return vmap(grad(loss), in_dims=(None, 0))(values, X)


def fake(model):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return model(mode.from_tensor(X)).shape


class IntoLayers(torch.fx.Tracer):
    """Traces the layers of torch, too, and so calls their hooks."""

    def is_leaf_module(self, m, module_qualified_name):
        return False


def forward_mode(model):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, torch.ones_like(X)))).tangent


def saliency(model):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(loss_of(model, x), x)


TRANSFORMS = {
    "grad": lambda model: grad(lambda x: loss_of(model, x))(X),
    "grad by parameters": lambda model: grad(by_parameters(model)[1])(by_parameters(model)[0], X),
    "vjp": lambda model: vjp(model, X)[1](torch.ones(4, 1)),
    "jvp": lambda model: jvp(model, (X,), (torch.ones_like(X),)),
    "jacrev": lambda model: jacrev(model)(X),
    "vmap of grad": per_sample_gradients,
    "functionalize": lambda model: functionalize(model)(X),
    "make_fx": lambda model: make_fx(lambda x: model(x))(X)(X),
    "symbolic tracing": lambda model: torch.fx.GraphModule(model, IntoLayers().trace(model))(X),
    "fake tensors": fake,
    "forward mode": forward_mode,
    "batched gradients": lambda model: torch.autograd.functional.jacobian(model, X, vectorize=True),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_functional_pass_returns_what_it_should_and_leaves_no_trace_in_the_numbers(name, inspect):
    numbers = []
    for transform in (None, TRANSFORMS[name]):
        model = new_model()
        expected = None if transform is None else transform(new_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lenses = all_lenses(optimizer)
        inspect(model, lenses, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, X).backward()
            optimizer.step()
            if transform is not None:
                before = [parameter.clone() for parameter in model.parameters()]
                found = transform(model)
                assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
                assert all(map(torch.equal, before, model.parameters()))
        numbers.append(samples(lenses))
    bare, transformed = numbers
    assert transformed.keys() == bare.keys()
    if name == "batched gradients":  # its forward pass is a plain one, and counts
        outputs = [place for place in bare if place[0].startswith("Output") and place[0] != "OutputGradientGeometry"]
        assert all(transformed[place][0::2] == bare[place] for place in outputs)
        bare = {place: values for place, values in bare.items() if place not in outputs}
    for place, values in bare.items():
        assert transformed[place] == pytest.approx(values, rel=1e-6), place


def test_the_gradient_of_an_input_alone_is_not_that_of_a_loss(inspect):
    model, gradients = new_model(), lens.OutputGradientGeometry(inplace=False)
    inspect(model, [gradients])
    saliency(model)
    assert not samples([gradients])
    loss_of(model, X).backward()
    assert {len(values) for values in samples([gradients]).values()} == {1}


def test_gradients_through_a_frozen_model_are_recorded(inspect):
    """As when an image is optimised: there is no parameter that is trained."""
    model, gradients = new_model().requires_grad_(False), lens.OutputGradientGeometry(inplace=False)
    inspect(model, [gradients])
    saliency(model)
    assert {len(values) for values in samples([gradients]).values()} == {1}


def hessian_by_returned_gradients(model, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(model, X), parameters, create_graph=True)
    return torch.autograd.grad(gradients, parameters, vectors)


def hessian_by_added_gradients(model, parameters, vectors):
    loss_of(model, X).backward(create_graph=True)
    return torch.autograd.grad([parameter.grad for parameter in parameters], parameters, vectors)


def several_hessian_products(model, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(model, X), parameters, create_graph=True)
    for _ in range(3):
        torch.autograd.grad(gradients, parameters, vectors, retain_graph=True)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
@pytest.mark.parametrize(
    "product", [hessian_by_returned_gradients, hessian_by_added_gradients, several_hessian_products]
)
def test_a_product_with_the_hessian_is_no_gradient_of_the_loss(product, inspect):
    model, gradients = new_model(), lens.OutputGradientGeometry(inplace=False)
    inspect(model, [gradients])
    hidden = model[0](X).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model[2](model[1](hidden)).square().mean(), hidden)
    for _ in range(2):
        parameters = list(model.parameters())
        product(model, parameters, [torch.ones_like(parameter) for parameter in parameters])
        model.zero_grad()
    found = samples([gradients])["OutputGradientGeometry", 0, "norm", "0"]
    assert found == pytest.approx([expected.double().norm().item()] * 2, rel=1e-5)


def test_the_loss_of_a_gradient_penalty_is_recorded_whole(inspect):
    """Differentiating gradients and adding the result to .grad is what trains."""
    model, gradients = new_model(), lens.OutputGradientGeometry(inplace=False)
    inspect(model, [gradients])
    parameters = list(model.parameters())
    inner = torch.autograd.grad(loss_of(model, X), parameters, create_graph=True)
    sum(part.square().sum() for part in inner).backward()
    assert len(samples([gradients])["OutputGradientGeometry", 0, "norm", "0"]) == 2


# modules and parameters that are not what they seem


class Token(nn.Module):
    """A learned token: its output is its own parameter."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 3))

    def forward(self):
        return self.token


class WithToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.head = Token(), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(x + self.token())


def test_a_returned_parameter_is_one_sample_per_step_and_keeps_no_hook(inspect):
    model, gradients = WithToken(), lens.OutputGradientGeometry(inplace=False)
    inspector = inspect(model, [gradients])
    expected = []
    for step in range(4):
        (model(X) * (step + 1)).square().mean().backward()
        expected.append(model.token.token.grad.double().numpy().copy())
        model.zero_grad()
    assert not model.token.token._backward_hooks
    norms, cosines = (
        samples([gradients])["OutputGradientGeometry", 0, name, "token"] for name in ("norm", "correlation")
    )
    assert norms == pytest.approx([np.linalg.norm(one) for one in expected], rel=1e-5)
    assert cosines == pytest.approx([0.0, 1.0, 1.0, 1.0])
    inspector.detach()


def test_a_model_changed_to_double_is_compared_rightly_or_not_at_all(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lenses = all_lenses(optimizer)
    inspect(model, lenses, optimizer=optimizer)
    ways, x = [], X
    for step in range(6):
        if step == 3:
            model.double()
            optimizer.state.clear()
            x = X.double()
        before = model[0].weight.detach().double().clone()
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
        ways.append((model[0].weight.detach().double() - before).numpy())
    found = samples(lenses)["ParameterUpdateGeometry", 0, "correlation", "0"]
    expected = [(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairwise(ways)]
    assert found[1:] == pytest.approx([value for step, value in enumerate(expected) if step != 2], abs=1e-4)
    assert all(
        abs(value) <= 1.0001
        for place, values in samples(lenses).items()
        if place[2] == "correlation"
        for value in values
    )


# models that change while they are trained


def test_a_layer_that_is_put_in_the_place_of_another_is_watched_from_the_next_tick_on(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [*all_lenses(optimizer), lens.ParameterNorm()]
    inspector = inspect(model, lenses, optimizer=optimizer)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model, X).backward()
            optimizer.step()

    train(2)
    inspector.tick_epoch()
    order = [record.layer for record in inspector.records()]
    model[0] = nn.Linear(3, 5)
    optimizer.param_groups[0]["params"][:2] = list(model[0].parameters())
    inspector.tick_epoch()
    before = model[0].weight.detach().double().clone()
    train(1)
    way = (model[0].weight.detach().double() - before).norm().item()
    train(1)
    found = samples(lenses)
    assert {len(values) for place, values in found.items() if place[3] == "0" and place[2] != "correlation"} == {2}
    assert found["ParameterUpdateGeometry", 0, "norm", "0"][0] == pytest.approx(way, rel=1e-5)
    assert len(found["ParameterUpdateGeometry", 0, "correlation", "0"]) == 1  # not with the layer before
    inspector.tick_epoch()
    assert [record.layer for record in inspector.records()] == order


def test_layers_that_come_and_go_are_followed(inspect):
    model, norms = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), lens.OutputNorm(inplace=False)
    inspector = inspect(model, [norms])
    model.append(nn.Tanh())
    inspector.tick_epoch()
    model(X)
    assert {layer for *_, layer in samples([norms])} == {"1", "2"}
    inspector.tick_epoch()
    del model[1]
    inspector.tick_epoch()
    model(X)
    inspector.tick_epoch()
    assert {record.layer for record in inspector.records() if record.tag == "Output Norm"} == {"1"}
    assert inspector.layers == ["", "0", "1"]


class Adapted(nn.Module):
    """A layer and what is trained beside it, as in low-rank adaptation."""

    def __init__(self, base):
        super().__init__()
        self.base, self.left = base, nn.Parameter(torch.zeros(base.out_features, 2))
        self.right = nn.Parameter(torch.ones(2, base.in_features))

    def forward(self, x):
        return self.base(x) + x @ self.right.T @ self.left.T


def give_a_bias(model):
    model[0].bias = nn.Parameter(torch.zeros(5))


def adapt(model):
    model[0] = Adapted(model[0])


def normalise(model):
    nn.utils.parametrizations.weight_norm(model[0])


def prune(model):
    pruning.l1_unstructured(model[0], "weight", 0.5)


def rename(model):
    layer = model[0]
    del model[0]
    model.insert(0, nn.Identity())
    model.insert(1, layer)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (give_a_bias, {"0.weight", "0.bias"}),
        (adapt, {"0.left", "0.right", "0.base.weight"}),
        (normalise, {"0.parametrizations.weight.original0", "0.parametrizations.weight.original1"}),
        (prune, {"0.weight_orig"}),
        (rename, {"1.weight"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_parameters_that_a_layer_gets_loses_or_takes_along_are_followed(change, shown, inspect):
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients, updates = (
        lens.ParameterGradientGeometry(parameters="all", inplace=False),
        lens.ParameterUpdateGeometry(optimizer, parameters="all", inplace=False),
    )
    inspector = inspect(model, [gradients, updates], optimizer=optimizer)

    def train():
        optimizer.zero_grad()
        loss_of(model, X).backward()
        optimizer.step()

    train()
    change(model)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    inspector.tick_epoch()
    train()
    found = samples([gradients, updates])
    for tag in ("ParameterGradientGeometry", "ParameterUpdateGeometry"):
        norms = {layer: value for (name, _, kind, layer), value in found.items() if (name, kind) == (tag, "norm")}
        assert norms.keys() == shown
    trained = dict(model.named_parameters())
    gradient = {layer: found["ParameterGradientGeometry", 0, "norm", layer] for layer in shown}
    assert gradient == {layer: [pytest.approx(trained[layer].grad.norm().item(), rel=1e-5)] for layer in shown}


def test_an_attribute_of_a_replaced_layer_is_followed(inspect):
    model, bias = new_model(), lens.Attribute("0.bias", inplace=False)
    inspector = inspect(model, [bias])
    model(X)
    model[0] = nn.Linear(3, 5)
    inspector.tick_epoch()
    nn.init.constant_(model[0].bias, 2.0)
    model(X)
    assert samples([bias])["Attribute", 0, "value", "0"] == pytest.approx([2 * 5**0.5])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_are_passed_over_with_one_warning(inspect):
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = all_lenses(optimizer)
    with pytest.warns(MonitorchWarning, match="scripted parts of the model are not watched: 1$"):
        inspect(model, lenses, optimizer=optimizer)
    loss_of(model, X).backward()
    optimizer.step()
    assert {layer for *_, layer in samples(lenses)} == {"0", "2"}


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        return (x @ self.weight).relu().to_sparse()


def test_sparse_outputs_and_their_gradients_are_measured(inspect):
    model = nn.Sequential(Sparse(), nn.Identity())
    lenses = [lens.OutputNorm(include=Sparse), lens.OutputActivation(include=Sparse), lens.OutputGradientGeometry()]
    inspector = inspect(model, lenses)
    for _ in range(2):
        torch.sparse.sum(model(X)).backward()
    inspector.tick_epoch()
    outputs = (X @ torch.ones(3, 3)).relu().double()
    found = {(record.tag, record.layer, record.statistic): record.value for record in inspector.records()}
    assert found["Output Norm", "0", "mean"] == pytest.approx(outputs.norm(dim=1).mean().item())
    assert found["Output Activations", "0", "activation_rate"] == pytest.approx((outputs > 0).double().mean().item())
    # the gradient of a sum is 1 wherever there is an element
    assert found["Output Gradient Norm", "0", "mean"] == pytest.approx((outputs > 0).sum().sqrt().item())


@pytest.mark.parametrize("value", [torch.inf, torch.nan, 3e38])
def test_gradients_that_overflow_are_counted_without_a_warning_of_numpy(value, inspect):
    model = new_model()
    lenses = [lens.ParameterGradientGeometry(inplace=False), lens.ParameterGradientActivation(inplace=False)]
    inspector = inspect(model, lenses)
    for scale in (1.0, value, value, 0.0, 1.0):
        model.zero_grad()
        (loss_of(model, X) * scale).backward()
    inspector.tick_epoch()
    assert len(samples(lenses)) == 0  # numbers of the tick before
    assert any(record.nonfinite for record in inspector.records()) == (value != 3e38)


# loops whose steps no hook tells of


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation in its usual form: two methods of its own instead of step()."""

    def __init__(self, parameters, base, rho=0.05, **options):
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        self._kept = [parameter.clone() for group in self.param_groups for parameter in group["params"]]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=0.05)

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter, kept in zip(group["params"], self._kept, strict=False):
                parameter.copy_(kept)
        self.base_optimizer.step()

    def step(self, closure=None):
        raise NotImplementedError


def sam_steps(model, optimizer, count, after=lambda: None):
    for _ in range(count):
        for half in (optimizer.first_step, optimizer.second_step):
            optimizer.zero_grad()
            loss_of(model, X).backward()
            half()
        after()


def test_an_optimizer_whose_step_is_never_called_is_told_once_with_the_cure(inspect):
    model = new_model()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    inspect(model, all_lenses(optimizer), optimizer=optimizer)
    with pytest.warns(
        MonitorchWarning, match=r"no call of Sam\.step\(\).*call step\(\) of the watch or inspector"
    ) as told:
        sam_steps(model, optimizer, 20)
    assert len(told) == 1


def test_passes_that_only_accumulate_are_not_taken_for_missed_steps(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = inspect(model, all_lenses(optimizer), optimizer=optimizer)
    for _ in range(200):
        loss_of(model, X).backward()
    optimizer.step()
    assert inspector.state.step == 1


@pytest.mark.parametrize("every", [1, 1000])
def test_an_optimizer_that_another_one_replaces_is_told_once(every, inspect):
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inspect(model, all_lenses(optimizer), optimizer=optimizer, every=every)

    def train(optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model, X).backward()
            optimizer.step()

    train(optimizer, 20)
    told = r"no call of Adam\.step\(\) has been seen since step 20.*if another optimizer trains the model now"
    with pytest.warns(MonitorchWarning, match=told) as warned:
        train(torch.optim.SGD(model.parameters(), lr=1e-3), 1000)
    assert len(warned) == 1


@pytest.mark.parametrize("every", [1, 7, 10_000])
def test_a_long_run_misses_no_step(every, inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inspector = inspect(model, all_lenses(optimizer), optimizer=optimizer, every=every)
    for _ in range(1100):
        optimizer.zero_grad()
        loss_of(model, X).backward()
        optimizer.step()
    assert inspector.state.step == inspector.state.passes == 1100


def test_a_teacher_made_in_inference_mode_does_not_hide_a_pass(inspect):
    model = new_model()
    with torch.inference_mode():
        model[0].teacher = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inspector = inspect(model, all_lenses(optimizer), optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, X).backward()
        optimizer.step()
    assert (inspector.state.step, inspector._steps.run_statistics.samples) == (3, 3 * len(X))


@pytest.mark.parametrize("every", [1, 1000])
def test_many_passes_between_two_steps_are_no_missed_step(every, inspect):
    actor, critic = new_model(), new_model()
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (actor, critic)]
    inspector = inspect(nn.ModuleList([actor, critic]), all_lenses(optimizers[0]), optimizer=optimizers, every=every)
    for _ in range(3):
        for turn in range(600):
            loss_of(actor, X).backward()
            loss_of(critic, X).backward()
            if turn % 100 == 0:
                optimizers[1].step()
        optimizers[0].step()
    assert inspector.state.step == 3


def test_a_step_can_be_told_by_hand_for_any_optimizer(inspect):
    model = new_model()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    lenses = all_lenses(optimizer)
    inspector = inspect(model, lenses, optimizer=optimizer)
    weights = [model[0].weight.detach().double().numpy().copy()]

    def ended():
        weights.append(model[0].weight.detach().double().numpy().copy())
        inspector.step()

    sam_steps(model, optimizer, 4, ended)
    assert inspector.state.step == 4
    found = samples(lenses)
    assert len(found["ParameterGradientGeometry", 0, "norm", "0"]) == 4
    ways = [np.linalg.norm(after - before) for before, after in pairwise(weights)]
    assert found["ParameterUpdateGeometry", 0, "norm", "0"] == pytest.approx(
        ways[1:], rel=1e-4
    )  # the first has no before


def test_told_steps_take_the_place_of_passes_where_there_is_no_optimizer(inspect):
    model = new_model()
    inspector = inspect(model, all_lenses())
    for _ in range(3):
        for _ in range(4):  # micro-batches
            loss_of(model, X).backward()
        inspector.step()
    assert inspector.state.step == 3


def test_a_step_that_is_noticed_anyway_is_not_counted_twice(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = inspect(model, all_lenses(optimizer), optimizer=optimizer)
    loss_of(model, X).backward()
    optimizer.step()
    with pytest.warns(MonitorchWarning, match="steps of this one are already counted"):
        inspector.step()
    assert inspector.state.step == 1


class Framework(nn.Module):
    """A root that is never called itself: a framework calls a method of it."""

    def __init__(self):
        super().__init__()
        self.net = new_model()

    def training_step(self, x):
        return self.net(x).square().mean()


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_root_that_is_never_called_is_watched_through_its_first_layer(with_optimizer, inspect):
    model = Framework()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = all_lenses()
    inspector = inspect(model, lenses, **({"optimizer": optimizer} if with_optimizer else {}))
    for _ in range(5):
        optimizer.zero_grad()
        model.training_step(X).backward()
        optimizer.step()
    assert inspector.state.step == 5
    assert inspector.state.passes == 5
    assert {len(values) for values in samples(lenses).values()} == {5}


def test_every_fifth_step_of_a_root_that_is_never_called(inspect):
    model, norms = Framework(), lens.OutputNorm(inplace=False)
    inspector = inspect(model, [norms], every=5)
    for _ in range(20):
        model.training_step(X).backward()
    assert inspector.state.step == 20
    assert len(samples([norms])["OutputNorm", 0, "value", "net.1"]) == 4


def test_an_optimizer_of_another_model_is_told(inspect):
    model, other = new_model(), new_model()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    inspect(model, all_lenses(), optimizer=optimizer)
    loss_of(other, X).backward()
    with pytest.warns(MonitorchWarning, match="has no parameter of the watched Sequential"):
        optimizer.step()
    optimizer.step()


def test_a_model_whose_layers_are_never_called_is_told(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspect(model, all_lenses(), optimizer=optimizer)
    nn.functional.linear(X, model[0].weight).sum().backward()
    with pytest.warns(MonitorchWarning, match="no layer of the watched Sequential was called"):
        optimizer.step()


def test_a_model_that_trains_in_eval_mode_is_told(inspect):
    model = new_model().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspect(model, all_lenses(), optimizer=optimizer)
    loss_of(model, X).backward()
    with pytest.warns(MonitorchWarning, match="the watched Sequential is in eval mode, .*; call model.train"):
        optimizer.step()


def test_hooks_that_change_gradients_are_seen_whenever_they_come(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = lens.ParameterGradientGeometry(inplace=False)
    inspect(model, [gradients], optimizer=optimizer)

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    consumed = []
    optimizer.register_step_pre_hook(clip)
    optimizer.register_step_post_hook(lambda *_: consumed.append(model[0].weight.grad.norm().item()))
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, X).backward()
        optimizer.step()
    assert samples([gradients])["ParameterGradientGeometry", 0, "norm", "0"] == pytest.approx(consumed, rel=1e-5)


def test_a_script_with_warnings_as_errors_trains_on(inspect, unexpected_warnings):
    model = new_model()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    inspect(model, all_lenses(optimizer), optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sam_steps(model, optimizer, 10)
    (message,) = unexpected_warnings
    assert "no call of Sam.step()" in message
    unexpected_warnings.clear()


class Attending(nn.Module):
    """Attention of two kinds and activation functions, in a block that may be checkpointed."""

    def __init__(self, policy=None):
        super().__init__()
        torch.manual_seed(4)
        self.into, self.up, self.head = nn.Linear(3, 6), nn.Linear(6, 9), nn.Linear(9, 1)
        self.policy = policy

    def forward(self, x):
        if self.policy is None:
            return self.head(self.block(x))
        contexts = partial(create_selective_checkpoint_contexts, self.policy)
        return self.head(checkpoint(self.block, x, use_reentrant=False, context_fn=contexts))

    def block(self, x):
        h = torch.relu(self.into(x)).view(2, 2, 2, 3)
        h = nn.functional.scaled_dot_product_attention(h, h, h)
        h = ((h @ h.transpose(-1, -2)).softmax(-1) @ h).transpose(1, 2).reshape(4, 6)
        return nn.functional.hardtanh(self.up(h), 0, 1).clone()


def train_attending(model, *around, lenses="all"):
    """Three steps; returns the weights, and what was shown of attention."""
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    options = {"visualizer": "dummy", "every": 1, "tick_every": 1, "lenses": lenses, "diagnose": False}
    watched = watch(model, optimizer, loss_fn=loss_fn, **options) if lenses else None
    for _ in range(3):
        for mode in around:
            mode.__enter__()
        output = model(X)
        for mode in reversed(around):
            mode.__exit__(None, None, None)
        loss_fn(output, X[:, :1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    shown = {}
    if watched is not None:
        shown = {
            (r.tag, r.statistic): r.value for r in watched.records() if r.lens in ("Attention", "ActivationHealth")
        }
        watched.close()
    return list(map(torch.clone, model.parameters())), shown


def save_everything(*_, **__):
    return CheckpointPolicy.MUST_SAVE


def save_products(_, operator, *__, **___):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("policy", [save_everything, save_products])
def test_results_that_checkpointing_saves_are_not_mixed_up_with_measurements(policy):
    weights, shown = train_attending(Attending(policy))
    bare, _ = train_attending(Attending(policy), lenses=None)
    assert all(map(torch.equal, weights, bare))
    assert shown == train_attending(Attending())[1]
    assert shown["Attention Entropy", "mean"] > 0


class Functions(TorchFunctionMode):
    """Notes every function that is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_modes_around_the_model_see_nothing_of_what_is_measured_in_it():
    modes, bare = (Functions(), Operators()), (Functions(), Operators())
    train_attending(Attending(), *modes)
    train_attending(Attending(), *bare, lenses=None)
    for ours, theirs in zip(modes, bare, strict=True):
        assert ours.seen == theirs.seen


class Noise(Operators):
    """Changes the results of some operators by what it draws at random, as an emulation of hardware does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = super().__torch_dispatch__(func, types, args, kwargs)
        is_product = func in (torch.ops.aten.addmm.default, torch.ops.aten.mul.Tensor)
        return found * (1 + 1e-3 * torch.randn(())) if is_product else found


def train_in(*modes, **options):
    """Weights after some steps with these modes around the whole loop, watched if there are options."""
    model = new_model()
    optimizer, loss_fn = torch.optim.Adam(model.parameters(), lr=0.1), nn.MSELoss()
    always = {"visualizer": "dummy", "on_error": "raise", "loss_fn": loss_fn}
    watched = watch(model, optimizer, **always, **options) if options else None
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        for step in range(48):
            optimizer.zero_grad()
            loss_fn(model(X), X[:, :1]).backward()
            optimizer.step()
            if step % 10 == 3:
                with torch.no_grad():
                    loss_fn(model.eval()(X), X[:, :1])
                model.train()
    if watched is not None:
        numbers = {record.tag: record.value for record in watched.records()}
        watched.close()
        assert "budget" in options or math.isfinite(numbers["Parameter Gradient Norm"])
    return [own.detach().clone() for own in model.parameters()]


@pytest.mark.parametrize(
    "options",
    [
        {"tick_every": 2},
        {"every": 1, "tick_every": 1},
        {"every": 1, "tick_every": 1, "lenses": "all"},
        {"every": 2, "tick_every": 2, "gradient": "before_clip"},
        {"every": 1, "tick_every": 1, "peak_flops": 1e12},
        {"every": 24, "tick_every": 24},  # nearly all steps are quiet
        {"budget": 0.9},
    ],
    ids=str,
)
def test_modes_around_training_see_and_change_the_same_operators_as_without_a_watch(options):
    functions, noise, bare_functions, bare_noise = Functions(), Noise(), Functions(), Noise()
    weights, bare = train_in(functions, noise, **options), train_in(bare_functions, bare_noise)
    assert noise.seen == bare_noise.seen
    assert functions.seen == bare_functions.seen
    for own, expected in zip(weights, bare, strict=True):
        assert torch.equal(own, expected)
