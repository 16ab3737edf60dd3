"""Pairs of features that are each right alone: numbers have to be right where they meet."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector, lens

X = torch.linspace(-1, 1, 12).reshape(4, 3)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


def new_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.fixture
def inspect():
    kept = []

    def build(model, *lenses, **options):
        kept.append(PyTorchInspector(list(lenses), module=model, visualizer="dummy", on_error="raise", **options))
        return kept[-1]

    return build


def cosine(a, b):
    a, b = (np.asarray(x, dtype=np.complex128).ravel() for x in (a, b))
    return float(np.vdot(a, b).real / np.linalg.norm(a) / np.linalg.norm(b))


def array(tensor):
    return tensor.detach().cpu().numpy().copy()


def samples(one, statistic, layer):
    return list(one._preprocessors[0].series(statistic)[layer])


@pytest.mark.parametrize("kind", ["gradients", "output gradients", "updates"])
def test_a_comparing_lens_may_join_one_that_only_measures(kind, inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    make = {
        "gradients": lens.ParameterGradientGeometry,
        "output gradients": lens.OutputGradientGeometry,
        "updates": lambda **options: lens.ParameterUpdateGeometry(optimizer, **options),
    }[kind]
    first, second = make(compute_correlation=False, inplace=False), make(inplace=False)
    inspector = inspect(model, first, optimizer=optimizer)
    seen, probe = [], {}
    model[0].register_forward_hook(lambda _, __, y: y.register_hook(lambda g: probe.update(gradient=array(g))) and None)
    for step in range(5):
        if step == 2:
            inspector.tick_epoch()
            inspector.lenses.append(second)
            inspector.tick_epoch()
        before = array(model[0].weight)
        optimizer.zero_grad()
        (model(X) * (step + 1)).square().mean().backward()
        gradient = array(model[0].weight.grad)
        optimizer.step()
        update = array(model[0].weight) - before
        seen.append({"gradients": gradient, "output gradients": probe["gradient"], "updates": update}[kind])
    assert samples(first, "norm", "0") == pytest.approx([np.linalg.norm(one) for one in seen[2:]], rel=1e-5)
    expected = [0.0, *(cosine(*pair) for pair in pairwise(seen[2:]))]
    assert samples(second, "correlation", "0") == pytest.approx(expected, abs=1e-5)


def test_a_parameter_that_joins_the_optimizer_between_backward_and_step_is_one_sample(inspect):
    model = new_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    gradients = lens.ParameterGradientGeometry(parameters="weight", inplace=False)
    inspect(model, gradients, optimizer=optimizer)
    expected = []
    for step in range(4):
        model.zero_grad()
        (model(X) * (step + 1)).square().mean().backward()
        expected.append(np.linalg.norm(array(model[2].weight.grad)))
        if step == 1:
            optimizer.add_param_group({"params": list(model[2].parameters())})
        if step >= 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if step > 1:  # from the step after it joined on it is what the optimizer gets
            expected[-1] = np.linalg.norm(array(model[2].weight.grad))
        optimizer.step()
    assert samples(gradients, "norm", "2") == pytest.approx(expected, rel=1e-5)


def test_a_kept_gradient_does_not_outlive_a_skipped_step(inspect):
    """Gradients as they were before clipping, a step that the scaler skips, then a pass that misses a layer."""
    model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    gradients = lens.ParameterGradientGeometry(parameters="weight", inplace=False)
    inspect(model, gradients, optimizer=optimizer, grad_scaler=scaler, gradient="before_clip")
    expected = {"0": [], "1": []}
    for step, layers in enumerate([(0, 1), (0, 1), (0,), (0, 1)]):
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(sum(model[layer](X * (step + 1)).square().mean() for layer in layers)).backward()
        if step == 1:
            model[0].bias.grad.fill_(torch.inf)
        else:
            for layer in layers:
                expected[str(layer)].append(np.linalg.norm(array(model[layer].weight.grad)) / scaler.get_scale())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        scaler.step(optimizer)
        scaler.update()
    for layer, norms in expected.items():
        assert samples(gradients, "norm", layer) == pytest.approx(norms, rel=1e-5), layer


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-30])
def test_wide_dtypes_at_any_scale_have_right_norms_and_cosines(scale, dtype, eps, inspect):
    layer = nn.Linear(3, 2, bias=False, dtype=dtype)
    gradients = lens.ParameterGradientGeometry(parameters="weight", inplace=False)
    gradients._preprocessors[0].eps = eps
    inspect(layer, gradients)
    stream, seen = torch.Generator().manual_seed(0), []
    for step in range(4):
        value = torch.randn(2, 3, generator=stream, dtype=dtype) * scale * 10.0**step
        layer.weight.grad = None
        layer.weight.backward(value)
        seen.append(array(value))
    sizes = [np.linalg.norm(one / scale) for one in seen]
    assert np.array(samples(gradients, "norm", "")) / scale == pytest.approx(sizes, rel=1e-9)
    # dot / (product of lengths + eps), with both sides divided by the square of the scale
    pairs = zip(seen, seen[1:], sizes, sizes[1:], strict=False)
    expected = [cosine(a / scale, b / scale) / (1 + eps / scale / scale / (n * m)) for a, b, n, m in pairs]
    assert samples(gradients, "correlation", "")[1:] == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_outputs_of_wide_dtypes_at_any_scale(dtype, scale, inspect):
    layer = nn.Linear(3, 2, bias=False, dtype=dtype)
    norms = lens.OutputNorm(include=nn.Linear, inplace=False)
    inspect(layer, norms)
    output = layer(X.to(dtype) * scale)
    expected = np.linalg.norm(array(output) / scale, axis=1).mean()
    assert samples(norms, "value", "")[0] / scale == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("correlation", ["exact", "sketch"])
@pytest.mark.parametrize("device", DEVICES)
def test_updates_at_some_steps_only_are_those_of_these_steps(every, fused, correlation, device, inspect):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(70, 70), nn.Tanh(), nn.Linear(70, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    updates = lens.ParameterUpdateGeometry(optimizer, parameters="weight", inplace=False, correlation=correlation)
    inspect(model, updates, optimizer=optimizer, every=every)
    ways, x = [], torch.randn(4, 70).to(device)
    for step in range(12):
        before = array(model[0].weight).astype(np.float64)
        optimizer.zero_grad()
        (model(x) * (step + 1)).square().mean().backward()
        optimizer.step()
        ways.append(array(model[0].weight) - before)
        if step % 5 == 4:
            model[0].weight.data.clamp_(-0.05, 0.05)  # changes no version
    observed = [step for step in range(12) if (step + 1) % every == 0]
    norms = [np.linalg.norm(ways[step]) for step in observed]
    assert samples(updates, "norm", "0") == pytest.approx(norms, rel=1e-5 if correlation == "exact" else 0.03)
    cosines = [cosine(ways[step - 1], ways[step]) for step in observed]
    assert samples(updates, "correlation", "0") == pytest.approx(cosines, abs=1e-4 if correlation == "exact" else 0.1)


def test_float64_and_sketches_and_resuming(inspect):
    """A state saved in the middle of a sketched float64 run goes on as if there had been no interruption."""
    torch.manual_seed(3)
    layer = nn.Linear(70, 70, bias=False, dtype=torch.float64)
    values = [torch.randn(70, 70, dtype=torch.float64) * 1e160 for _ in range(4)]

    def run(inspector, some):
        for value in some:
            layer.weight.grad = None
            layer.weight.backward(value)

    whole = lens.ParameterGradientGeometry(parameters="weight", inplace=False, correlation="sketch")
    inspector = inspect(layer, whole)
    run(inspector, values)
    expected = samples(whole, "correlation", "")
    inspector.detach()
    parts = [lens.ParameterGradientGeometry(parameters="weight", inplace=False, correlation="sketch") for _ in range(2)]
    first = inspect(layer, parts[0])
    run(first, values[:2])
    state = first.state_dict()
    second = inspect(layer, parts[1])
    second.load_state_dict(state)
    first.detach()
    run(second, values[2:])
    assert samples(parts[1], "correlation", "") == pytest.approx(expected, rel=1e-9)
