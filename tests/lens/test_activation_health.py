"""ActivationHealth: every number against NumPy, which computes the activations again from a copy of the model."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from monitorch import MonitorchWarning
from monitorch.errors import OptionError
from monitorch.lens import ActivationHealth, Attention
from monitorch.preprocessor import activations
from monitorch.preprocessor.activations import FREE as NO_BOUNDS
from monitorch.preprocessor.activations import MOST, Activations, thinned
from tests.marks import some_fast

ZEROS, SATURATION, DEAD, BATCH_SPREAD, UNIT_SPREAD = (
    f"Activation {what}" for what in ("Zeros", "Saturation", "Dead Units", "Batch Spread", "Unit Spread")
)
TAGS = ZEROS, SATURATION, DEAD, BATCH_SPREAD, UNIT_SPREAD


# the oracle


def array(x):
    return x.detach().double().numpy()


def spread(x, axis):
    """Mean of standard deviations along an axis, over the scale; None for one element."""
    if x.shape[axis] < 2:
        return None
    scale = np.sqrt(np.mean(x**2))
    return x.std(axis=axis).mean() / scale if scale else 0.0


def oracle(passes, units, is_saturated=None, full_after=None):
    """What one activation shows after these passes; units are in this dimension, and the window is full once."""
    found = {
        ZEROS: np.mean([np.mean(x == 0) for x in passes]),
        BATCH_SPREAD: np.mean([spread(x, 0) for x in passes]),
        UNIT_SPREAD: np.mean([spread(x, units) for x in passes]),
    }
    if is_saturated is not None:
        found[SATURATION] = np.mean([np.mean(is_saturated(x)) for x in passes])
    if full_after is not None:
        whole = np.concatenate([np.moveaxis(x, units, 0).reshape(x.shape[units], -1) for x in passes[:full_after]], 1)
        found[DEAD] = np.mean(np.all(whole == 0, axis=1))
    return found


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return array(functional.gelu(torch.from_numpy(x)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def linear(layer, x):
    return x @ array(layer.weight).T + array(layer.bias)


def convolve(layer, x):
    """A convolution with a kernel of one."""
    weight = array(layer.weight)[:, :, 0, 0]
    return np.einsum("oc,bchw->bohw", weight, x) + array(layer.bias)[:, None, None]


def near(low, high):
    return lambda x: (x <= low + 0.01) | (x >= high - 0.01)


# the models: what they compute in NumPy, by name, with the dimension of units and what is saturated


class Called(nn.Module):
    """Calls a function between two layers."""

    def __init__(self, call, scale=1.0):
        super().__init__()
        self.fc, self.out, self.call = nn.Linear(6, 8), nn.Linear(8, 2), call
        with torch.no_grad():
            self.fc.weight.mul_(scale)

    def forward(self, x):
        return self.out(self.call(self.fc(x)))


class Layers(nn.Sequential):
    """With code of its own: that of torch is compiled in another way, in which calls are not seen."""

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 5, 1), nn.BatchNorm2d(5), nn.Linear(5, 3)
        nn.init.constant_(self.conv.bias[1], -50.0)

    def forward(self, x):
        return torch.sigmoid(self.head(functional.relu(self.conv(x)).mean((2, 3))))


class Block(nn.Module):
    """The second half of a transformer block, on (sequences, positions, features)."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 7), nn.Linear(7, 6)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return x + self.down(self.dropout(functional.gelu(self.up(self.norm(x)))))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x)).relu_()


def of_called(function):
    return lambda model, x: {"fc": function(linear(model.fc, x))}


def of_layers(model, x):
    first = relu(linear(model[0], x))
    return {"1": first, "3": np.tanh(linear(model[2], first))}


def of_images(model, x):
    hidden = relu(convolve(model.conv, x))
    return {"conv": hidden, "head": sigmoid(linear(model.head, hidden.mean((2, 3))))}


def of_blocks(model, x):
    norm = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + model.first.norm.eps)
    return {"first.up": gelu(linear(model.first.up, norm))}


FREE = None
CASES = {
    "modules": (
        lambda: Layers(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)),
        (40, 6),
        of_layers,
        {"1": (1, FREE), "3": (1, near(-1, 1))},
    ),
    "in-place module": (
        lambda: Called(nn.ReLU(inplace=True)),
        (40, 6),
        lambda model, x: {"call": relu(linear(model.fc, x))},
        {"call": (1, FREE)},
    ),
    "F.relu": (lambda: Called(functional.relu), (40, 6), of_called(relu), {"fc": (1, FREE)}),
    "torch.relu": (lambda: Called(torch.relu), (40, 6), of_called(relu), {"fc": (1, FREE)}),
    "relu_": (lambda: Called(lambda x: x.relu_()), (40, 6), of_called(relu), {"fc": (1, FREE)}),
    "sigmoid": (lambda: Called(torch.sigmoid, 30), (40, 6), of_called(sigmoid), {"fc": (1, near(0, 1))}),
    "tanh": (lambda: Called(lambda x: x.tanh_(), 10), (40, 6), of_called(np.tanh), {"fc": (1, near(-1, 1))}),
    "softsign": (
        lambda: Called(functional.softsign, 200),
        (40, 6),
        of_called(lambda x: x / (1 + np.abs(x))),
        {"fc": (1, near(-1, 1))},
    ),
    "gelu": (lambda: Called(functional.gelu), (40, 6), of_called(gelu), {"fc": (1, FREE)}),
    "silu": (lambda: Called(nn.functional.silu), (40, 6), of_called(lambda x: x * sigmoid(x)), {"fc": (1, FREE)}),
    "softplus": (
        lambda: Called(functional.softplus),
        (40, 6),
        of_called(lambda x: np.log1p(np.exp(x))),
        {"fc": (1, FREE)},
    ),
    "clamp": (
        lambda: Called(lambda x: x.clamp(-0.25, 0.5)),
        (40, 6),
        of_called(lambda x: x.clip(-0.25, 0.5)),
        {"fc": (1, lambda x: (x == -0.25) | (x == 0.5))},
    ),
    "clamp from 0": (
        lambda: Called(lambda x: torch.clamp(x, min=0, max=0.5)),
        (40, 6),
        of_called(lambda x: x.clip(0, 0.5)),
        {"fc": (1, lambda x: x == 0.5)},
    ),
    "clamp_min": (lambda: Called(lambda x: x.clamp_min(0)), (40, 6), of_called(relu), {"fc": (1, FREE)}),
    "clamp by a tensor": (
        lambda: Called(lambda x: x.clamp(max=torch.full((8,), 0.5))),
        (40, 6),
        of_called(lambda x: np.minimum(x, 0.5)),
        {"fc": (1, FREE)},
    ),
    "relu6": (
        lambda: Called(functional.relu6, 20),
        (40, 6),
        of_called(lambda x: x.clip(0, 6)),
        {"fc": (1, lambda x: x == 6)},
    ),
    "hardtanh": (
        lambda: Called(functional.hardtanh, 5),
        (40, 6),
        of_called(lambda x: x.clip(-1, 1)),
        {"fc": (1, lambda x: np.abs(x) == 1)},
    ),
    "hardsigmoid": (
        lambda: Called(functional.hardsigmoid, 20),
        (40, 6),
        of_called(lambda x: (x / 6 + 0.5).clip(0, 1)),
        {"fc": (1, lambda x: (x == 0) | (x == 1))},
    ),
    "images": (Images, (8, 2, 4, 4), of_images, {"conv": (1, FREE), "head": (1, near(0, 1))}),
    "channels last": (Blocks, (8, 5, 6), of_blocks, {"first.up": (2, FREE)}),
    "linear layer on sequences": (
        lambda: Called(functional.relu),
        (8, 5, 6),
        of_called(relu),
        {"fc": (2, FREE)},
    ),
}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(model, batches, watch, lens=None, **options):
    inspector = watch(model, lens or ActivationHealth(), **options)
    for batch in batches:
        model(batch).sum().backward()
    inspector.tick_epoch()
    return inspector


def check(shown, layer, expected):
    for tag in TAGS:
        found = shown.values(tag).get(layer)
        assert (found is None) == (tag not in expected), tag
        if found is not None:
            assert found["mean"] == pytest.approx(expected[tag], rel=1e-5, abs=1e-6), tag


UNSEEN_IN_GRAPHS = {"hardsigmoid"}
QUICKLY_COMPILED = {"modules", "in-place module", "channels last", "F.relu", "clamp from 0", "silu"}
EVERY_WAY = [
    (case, compiled) for case in CASES for compiled in (False, True) if not compiled or case not in UNSEEN_IN_GRAPHS
]


def measure_as_elsewhere(monkeypatch):
    """Measure tensors as on devices other than the CPU."""
    monkeypatch.setattr(activations, "is_here", lambda x: False)


@pytest.fixture(params=["on the CPU", "as elsewhere"])
def place(request, monkeypatch):
    if request.param == "as elsewhere":
        measure_as_elsewhere(monkeypatch)


@pytest.mark.parametrize(
    ("case", "compiled"),
    some_fast(EVERY_WAY, lambda case, compiled: not compiled or case in QUICKLY_COMPILED),
)
def test_numbers_are_those_of_numpy(case, compiled, watch, shown):
    compare(case, watch, shown, compiled=compiled)


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_the_same_on_other_devices(case, watch, shown, monkeypatch):
    measure_as_elsewhere(monkeypatch)
    compare(case, watch, shown)


def compare(case, watch, shown, *, compiled=False):
    build, shape, compute, expected = CASES[case]
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    batches = [draw(*shape, seed=seed) for seed in range(3)]
    if compiled:
        torch._dynamo.reset()
        counters.clear()
        model = torch.compile(model, backend="aot_eager")
    run(model, batches, watch)
    assert not (compiled and counters["graph_break"])
    computed = [compute(twin, array(batch)) for batch in batches]
    for layer, (units, is_saturated) in expected.items():
        check(shown, layer, oracle([found[layer] for found in computed], units, is_saturated))


# windows


def with_dead_units(dead):
    """A layer in which some units get a large negative bias."""
    torch.manual_seed(0)
    model = Called(functional.relu)
    with torch.no_grad():
        model.fc.bias[:dead] = -1e3
    return model


@pytest.mark.parametrize("dead", [0, 3, 8])
@pytest.mark.parametrize(
    ("shape", "passes"), [((64, 6), 4), ((256, 6), 1), ((100, 6), 3), ((4, 1024, 6), 4), ((2, 16_384, 6), 4)]
)
def test_dead_units_are_found_when_a_window_is_full(dead, shape, passes, watch, shown):
    model = with_dead_units(dead)
    batches = [draw(*shape, seed=seed) for seed in range(passes)]
    inspector = watch(model, ActivationHealth())
    for batch in batches[:-1]:
        model(batch).sum().backward()
    inspector.tick_epoch()
    assert not shown.values(DEAD)
    model(batches[-1]).sum().backward()
    inspector.tick_epoch()
    assert shown.values(DEAD)["fc"]["mean"] == dead / 8
    full = oracle([relu(linear(model.fc, array(batch))) for batch in batches], len(shape) - 1, full_after=passes)
    assert full[DEAD] == dead / 8


def test_a_unit_that_is_zero_in_all_batches_but_one_is_not_dead(watch, shown):
    model = Called(functional.relu)
    with torch.no_grad():
        model.fc.weight.copy_(torch.eye(8, 6))
        model.fc.bias.fill_(-1.0)
    batches = [torch.zeros(64, 6) for _ in range(4)]
    batches[2][5, 0] = 2.0  # one entry of one batch
    run(model, batches, watch)
    assert shown.values(DEAD)["fc"]["mean"] == 7 / 8
    assert shown.values(ZEROS)["fc"]["mean"] == pytest.approx(1 - 1 / (4 * 64 * 8))


@pytest.mark.usefixtures("place")
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("act", "dead"),
    [
        (torch.tanh, 0),
        (functional.softsign, 0),
        (functional.hardtanh, 0),
        (lambda x: x.clamp(-1, 2), 0),
        (lambda x: x.clamp(0, 2), 1),
        (functional.relu, 1),
        (functional.relu6, 1),
    ],
)
def test_units_that_are_zero_where_their_function_is_steepest_are_not_dead(act, dead, watch, shown):
    model = Called(act)
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    run(model, [torch.randn(256, 6)], watch)
    assert shown.values(ZEROS)["fc"]["mean"] == 1
    assert shown.values(DEAD)["fc"]["mean"] == dead


def test_windows_follow_each_other(watch, shown):
    model = with_dead_units(2)
    inspector = run(model, [draw(128, 6, seed=seed) for seed in range(5)], watch)
    with torch.no_grad():
        model.fc.bias.fill_(-1e3)
    for size in (128, 256):  # the first one fills a window that has seen living units
        model(draw(size, 6)).sum().backward()
        inspector.tick_epoch()
    found = [values["fc"]["mean"] for _, tag, values, _ in shown.calls if tag == DEAD]
    assert found == [2 / 8, 2 / 8, 1]


def test_a_batch_of_one_calls_no_unit_dead_before_there_were_enough(watch, shown):
    torch.manual_seed(0)
    model = Called(functional.relu)
    run(model, [draw(1, 6, seed=seed) for seed in range(255)], watch)
    assert not shown.values(DEAD)
    assert not shown.values(BATCH_SPREAD)
    assert 0.2 < shown.values(ZEROS)["fc"]["mean"] < 0.8


@pytest.mark.usefixtures("place")
def test_a_layer_that_changes_its_width_begins_a_new_window(watch, shown):
    model = nn.Sequential(nn.ReLU())
    inspector = watch(model, ActivationHealth())
    for width in (3, 4):
        model(torch.zeros(200, width, requires_grad=True)).sum().backward()
    inspector.tick_epoch()
    assert not shown.values(DEAD)
    model(torch.zeros(56, 4, requires_grad=True)).sum().backward()
    inspector.tick_epoch()
    assert shown.values(DEAD) == {"0": {"mean": 1.0}}


@pytest.mark.usefixtures("place")
def test_a_window_goes_on_after_a_checkpoint(watch, shown):
    model = with_dead_units(3)
    first = watch(model, ActivationHealth())
    model(draw(200, 6)).sum().backward()
    state = first.state_dict()
    first.detach()
    second = watch(model, ActivationHealth())
    second.load_state_dict(state)
    model(draw(56, 6, seed=1)).sum().backward()
    second.tick_epoch()
    assert shown.values(DEAD)["fc"]["mean"] == 3 / 8


# names


class Gates(nn.Module):
    """A recurrent cell that is written by hand, and called for each position."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 18)

    def forward(self, x):
        total = 0
        for part in x.unbind(1):
            first, second, third = self.inner(part).chunk(3, -1)
            total = total + torch.sigmoid(first) * torch.sigmoid(second) + torch.tanh(third)
        return total


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.inner = nn.Parameter(draw(6, 6)), Gates()

    def forward(self, x):
        return functional.relu(self.inner(functional.relu(x) @ self.weight))


@pytest.mark.parametrize("compiled", [False, True])
def test_names_of_calls(compiled, watch, shown):
    model = ByHand()
    if compiled:
        torch._dynamo.reset()
    run(torch.compile(model, backend="aot_eager") if compiled else model, [draw(4, 3, 6)] * 3, watch)
    # before any layer, then after the layer that ran last; its three calls come first
    assert list(shown.values(ZEROS)) == ["", "inner.inner", "inner.inner 2", "inner.inner 3", "inner.inner 4"]
    assert list(shown.values(SATURATION)) == ["inner.inner", "inner.inner 2", "inner.inner 3"]


def test_a_module_that_is_called_often_has_one_name(watch, shown):
    act = nn.Tanh()
    model = nn.Sequential(nn.Linear(6, 6), act, nn.Flatten(), act, nn.Linear(6, 2))
    run(model, [draw(4, 6)], watch)
    assert list(shown.values(ZEROS)) == ["1"]


def test_a_formula_of_the_transformers_library_shows_no_parts(watch, shown):
    from transformers.activations import ACT2FN

    model = nn.Sequential(*(ACT2FN[name] for name in ("gelu_new", "quick_gelu", "gelu", "silu", "relu2", "tanh")))
    run(model, [draw(4, 6).requires_grad_()], watch)
    assert list(shown.values(ZEROS)) == ["2", "3", "4", "5"]
    assert list(shown.values(SATURATION)) == ["5"]


def test_modules_of_torch_are_seen(watch, shown):
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Conv1d(6, 8, 1), nn.ELU(), nn.Flatten(2), nn.PReLU(8), encoder, nn.GELU(), nn.Mish())
    run(model, [draw(4, 6, 8)], watch, ActivationHealth())
    assert list(shown.values(ZEROS)) == ["1", "3", "4.linear1", "5", "6"]


# what is left out


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.dropout(x),
        lambda x: x.softmax(-1),
        lambda x: x * x.detach().sum().relu(),
        lambda x: x * x.detach().long().clamp(0, 1),
        lambda x: x[:0].relu().sum() + x,
        lambda x: x.abs(),
    ],
)
def test_what_is_no_activation_shows_nothing(call, watch, shown):
    run(Called(call), [draw(4, 6)], watch)
    assert not any(shown.values(tag) for tag in TAGS)


def test_a_single_row_is_one_unit(watch, shown):
    run(Called(lambda x: x[:, 0].relu()[:, None] * x), [draw(4, 6)], watch)
    assert not shown.values(UNIT_SPREAD)
    assert shown.values(BATCH_SPREAD)["fc"]["mean"] > 0


@pytest.mark.usefixtures("place")
def test_a_layer_of_zeros_has_no_spread_and_nan_is_not_dead(watch, shown):
    model = nn.Sequential(nn.ReLU())
    run(model, [torch.full((256, 4), value, requires_grad=True) for value in (-1.0, torch.nan)], watch)
    assert shown.values(ZEROS)["0"]["mean"] == 0.5
    assert shown.values(DEAD)["0"]["mean"] == 0.5
    assert shown.ranges(DEAD)["0"]["min", "max"] == (0, 1)
    assert shown.ranges(BATCH_SPREAD)["0"]["min", "max"] == (0, 0)


def test_nested_tensors_are_left_out_with_a_warning(watch, shown):
    def rectify(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch says that they are a prototype
            nested = torch.nested.as_nested_tensor([x[:2], x[2:]])
        return functional.relu(nested).to_padded_tensor(0.0)

    model = Called(rectify)
    inspector = watch(model, ActivationHealth())
    with pytest.warns(MonitorchWarning, match="nested tensor are not measured"):
        model(draw(5, 6))
    inspector.tick_epoch()
    assert not shown.values(ZEROS)


# how it is asked for


@pytest.mark.parametrize(("channel_last", "dead"), [(True, 0.5), (False, 0.25)])
def test_units_may_be_said_to_be_elsewhere(channel_last, dead, watch, shown):
    x = torch.ones(256, 4, 6)
    x[:, 0] = 0
    x[:, :, :3] = 0
    model = nn.Sequential(nn.ReLU())
    run(model, [x.requires_grad_()], watch, ActivationHealth(channel_last=channel_last))
    assert shown.values(DEAD)["0"]["mean"] == dead


@pytest.mark.parametrize(("dims", "dead"), [(3, 0.5), (4, 0.25)])
def test_without_weights_images_have_units_in_dimension_1(dims, dead, watch, shown):
    x = torch.ones(256, 4, *[3] * (dims - 3), 6)
    x[:, 0] = 0
    x[..., :3] = 0
    run(nn.Sequential(nn.ReLU()), [x.requires_grad_()], watch)
    assert shown.values(DEAD)["0"]["mean"] == dead


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"channel_last": "no"}, "channel_last"),
        ({"line_aggregation": "median"}, "inplace=False"),
        ({"range_aggregation": "all"}, "range_aggregation"),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(OptionError, match=text):
        ActivationHealth(**options)


@pytest.mark.parametrize(("record_eval", "seen"), [(False, []), (True, ["fc"])])
def test_evaluation_is_recorded_on_request(record_eval, seen, watch, shown):
    model = Called(functional.relu).eval()
    inspector = watch(model, ActivationHealth(record_eval=record_eval))
    for context in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with context():
            model(draw(100, 6))
    inspector.tick_epoch()
    assert list(shown.values(ZEROS)) == list(shown.values(DEAD)) == seen


def test_idle_steps_add_nothing(watch, shown):
    model = Called(functional.relu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inspector = watch(model, ActivationHealth(), every=4, optimizer=optimizer)
    for _ in range(12):
        model(draw(100, 6)).sum().backward()
        optimizer.step()
    inspector.tick_epoch()
    (health,) = inspector.lenses[0]._preprocessors
    assert shown.values(DEAD)
    assert health._windows == {}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_parts_count_once(use_reentrant, watch, shown):
    inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU())

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    model = Outer()
    inspector = run(model, [draw(100, 6).requires_grad_()] * 2, watch, ActivationHealth(inplace=False))
    (health,) = inspector.lenses[0]._preprocessors
    assert list(shown.values(ZEROS)) == ["inner.1"]
    assert health._windows["inner.1"].entries == 200


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype, watch, shown):
    torch.manual_seed(0)
    model = Called(lambda x: x.clamp(max=0.7).clamp(min=0.3)).to(dtype)
    x = draw(256, 6).to(dtype)
    run(model, [x], watch)
    first = array(model.fc(x).clamp(max=0.7))
    check(shown, "fc", oracle([first], 1, lambda x: x == array(torch.tensor(0.7, dtype=dtype)), full_after=1))
    second = np.maximum(first, array(torch.tensor(0.3, dtype=dtype)))
    check(shown, "fc 2", oracle([second], 1, lambda x: x == second.min(), full_after=1))


def test_together_with_attention(watch, shown):
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    inspector = watch(model, ActivationHealth(), Attention())
    model(draw(4, 5, 8)).sum().backward()
    inspector.tick_epoch()
    assert list(shown.values(ZEROS)) == ["linear1"]
    assert list(shown.values("Attention Entropy")) == ["self_attn"]


@pytest.mark.parametrize("how", ["torch.compile", "model.compile", "a part", "Sequential"])
@pytest.mark.parametrize(("in_graphs", "seen"), [(True, True), (False, False)])
def test_compiled_graphs_are_left_as_they_are_on_request(how, in_graphs, seen, watch, shown):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU()) if how == "Sequential" else Called(functional.relu)
    called = model
    if how == "model.compile":
        model.compile(backend="aot_eager")
    elif how == "a part":
        model.fc.compile(backend="aot_eager")
    else:
        called = torch.compile(model, backend="aot_eager")
    inspector = watch(model, ActivationHealth(in_graphs=in_graphs))
    if how == "Sequential" and in_graphs:
        with pytest.warns(MonitorchWarning, match="calls of functions are not seen"):
            called(draw(4, 6)).sum().backward()
        seen = False
    else:
        called(draw(4, 6)).sum().backward()
    inspector.tick_epoch()
    assert bool(shown.values("Activation Zeros")) == seen


LARGE = {"text": ((4, 3000, 128), 2), "images": ((4, 128, 60, 60), 1), "rows": ((12_000, 128), 1)}


@pytest.mark.parametrize("case", LARGE)
def test_of_large_results_evenly_spread_positions_are_looked_at_and_others_in_each_step(case):
    shape, units = LARGE[case]
    x, health, seen = draw(*shape).relu_(), Activations(), torch.zeros(shape, dtype=torch.bool)
    for step in range(8):
        health.process_activation("layer", x, NO_BOUNDS, channel_last=units == x.dim() - 1, step=step)
        part = thinned(seen, units, step)
        assert MOST / 2 < part.numel() <= MOST * 1.1
        part[:] = True
    assert seen.all()
    found, numbers = {name: moments.mean for name, moments in health.value["layer"].items()}, array(x)
    scale = math.sqrt((numbers**2).mean())
    assert found["zeros"] == pytest.approx((numbers == 0).mean(), abs=2e-3)
    assert found["unit spread"] == pytest.approx(numbers.std(units).mean() / scale, rel=1e-2)
    assert found["death"] == 0.0
