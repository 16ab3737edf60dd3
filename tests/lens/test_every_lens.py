"""One harness for all lenses: a lens is tested from the moment it is exported, and must have an entry in CASES.

First come functions that say what a lens should show, from a tape, as ``(tag, values, ranges)``; then the tests.
"""

import copy
import pickle
from collections import OrderedDict
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from monitorch import lens
from monitorch.lens.module_distinction import isactivation
from monitorch.preprocessor import distribution
from tests.defaults import default_dtype
from tests.lens.conftest import SITUATIONS
from tests.marks import some_fast
from tests.numerical import checksum_oracle

LENSES = [name for name in lens.__all__ if name != "AbstractLens"]


MINMAX = "min", "max"


def lines_and_bands(samples_by_layer):
    values, ranges = {}, {}
    for layer, samples in samples_by_layer.items():
        mean, std = np.mean(samples), np.std(samples)
        values[layer] = {"mean": mean}
        ranges[layer] = {("-σ", "+σ"): (mean - std, mean + std), MINMAX: (np.min(samples), np.max(samples))}
    return values, ranges


def named_lines(tag, samples_by_name):
    values, ranges = lines_and_bands({name: samples for name, samples in samples_by_name.items() if samples})
    lines = {f"{name} mean": found["mean"] for name, found in values.items()}
    return tag, {tag: lines}, {tag: {(f"{n} -σ", f"{n} +σ"): found["-σ", "+σ"] for n, found in ranges.items()}}


def cosine(before, now):
    """The run's first is 0, and so is that of a zero; after a change of shape there is none."""
    if before is not None and before.shape != now.shape:
        return None
    lengths = 0 if before is None else np.linalg.norm(before) * np.linalg.norm(now)
    return np.sum(before * now) / lengths if lengths else 0.0


def geometry(what, series):
    norms = {layer: [np.linalg.norm(now) for _, now in pairs] for layer, pairs in series.items()}
    cosines = {layer: [cosine(*pair) for pair in pairs if cosine(*pair) is not None] for layer, pairs in series.items()}
    return [(f"{what} Norm", *lines_and_bands(norms)), (f"{what} Correlation", *lines_and_bands(cosines))]


def parameter_geometry(what, kept, tape):
    series = {f"{p.title()} {what}": tape.new(getattr(tape, kept)[p]) for p in ("weight", "bias")}
    return [call for name, found in series.items() for call in geometry(name, found)]


def rows(array):
    return array.reshape(len(array), -1)


def rates(tag, series, neurons_of):
    values = {}
    for layer, pairs in series.items():
        by_neuron = [(np.abs(rows(neurons_of(now))) > 1e-8).mean(axis=1) for _, now in pairs]
        dead = np.mean([np.mean(active == 0) for active in by_neuron])
        values[layer] = {"activation_rate": np.mean([active.mean() for active in by_neuron]), "death_rate": dead}
    return tag, values, None


def worst(tag, *calls):
    found = [pair for _, values, _ in calls for pair in values.values()]
    lowest, highest = min(p["activation_rate"] for p in found), max(p["death_rate"] for p in found)
    return tag, {tag: {"worst activation_rate": lowest, "worst death_rate": highest}}, None


def shares(tag, values):
    total = sum(lines["mean"] for lines in values.values())
    return tag, {tag: {layer: lines["mean"] / total for layer, lines in values.items()}}, None


def each_parameter(tape, short, measure):
    return {layer: {"mean": measure(array)} for layer, array in tape.parameters(short).items()}


def show_losses(tape):
    scores = {"score": [2 * loss for loss in tape.losses["train_loss"]]}
    return named_lines("Loss", tape.losses), named_lines("Metrics", scores)


def show_output_norms(tape):
    series = tape.new(tape.outputs)
    norms = {layer: [np.linalg.norm(rows(now), axis=1).mean() for _, now in series[layer]] for layer in series}
    values, ranges = lines_and_bands(norms)
    return ("Output Norm", values, ranges), shares("Mean Output Norm Comparison", values)


def show_activations(tape):
    small = rates("Output Activations", tape.new(tape.outputs), lambda output: np.moveaxis(output, 1, 0))
    return small, worst("Warning Output Activations", small)


def show_gradient_activations(tape):
    series = {f"{p.title()} Gradient Activation": tape.new(tape.gradients[p]) for p in ("weight", "bias")}
    small = [rates(tag, found, np.asarray) for tag, found in series.items()]
    return *small, worst("Warning Gradient Activations", *small)


def show_gradient_norm(tape):
    series = [found for p in ("weight", "bias") for found in tape.new(tape.gradients[p]).values()]
    squares = [[np.sum(now.astype(float) ** 2) for _, now in pairs] for pairs in series]
    norms = np.sqrt(np.sum(squares, axis=0))
    lines = (
        {"gradient_norm mean": norms.mean()},
        {("gradient_norm min", "gradient_norm max"): (norms.min(), norms.max())},
    )
    return [("Gradient Norm", *({"Gradient Norm": found} for found in lines))]


def show_parameter_norms(tape):
    norms = {p: each_parameter(tape, p.lower(), np.linalg.norm) for p in ("Weight", "Bias")}
    small = [(f"{p} Norm", values, None) for p, values in norms.items()]
    return *small, *(shares(f"{p} Norm Comparison", values) for p, values in norms.items())


def show_conditions(tape):
    return [("Weight Cond", each_parameter(tape, "weight", lambda array: np.linalg.cond(rows(array))), None)]


def show_spectra(tape):
    """By singular values; enough iterations find the largest one."""
    matrices = {layer: rows(array) for layer, array in tape.parameters("weight").items()}
    singular = {layer: np.linalg.svd(matrix, compute_uv=False) for layer, matrix in matrices.items()}
    norms = {layer: {"mean": found[0]} for layer, found in singular.items()}
    ranks = {layer: {"mean": np.sum(found**2) / found[0] ** 2} for layer, found in singular.items()}
    return ("Weight Spectral Norm", norms, None), ("Weight Stable Rank", ranks, None)


def show_first_weight(tape):
    """After each pass in train mode: the weight as it was before each step, and in the pass after the last one."""
    layer, last = next(iter(tape.parameters("weight").items()))
    updates = [now for _, now in tape.new(tape.updates["weight"])[layer]]
    weights = [last - sum(updates[step:]) for step in range(len(updates) + 1)]
    return [("Weight", *lines_and_bands({layer: [np.linalg.norm(weight) for weight in weights]}))]


def show_nonfinite(tape):
    def counts(arrays):
        return {layer: {"max": max(np.sum(~np.isfinite(array)) for array in own)} for layer, own in arrays.items()}

    def of_layers(kept):
        return {layer: [now for _, now in pairs] for layer, pairs in tape.new(kept).items()}

    names = [(f"{layer}.{short}", layer, short) for layer, short, _ in tape._parameters()]
    gradients = {short: of_layers(kept) for short, kept in tape.gradients.items()}
    parameters = {short: tape.parameters(short) for _, _, short in names}
    own = {layer for _, layer, _ in names}
    activations = {name for name, module in tape.model.named_modules() if isactivation(module)}
    outputs, output_gradients = of_layers(tape.outputs), of_layers(tape.output_gradients)
    shown = {
        "Outputs": {layer: kept for layer, kept in outputs.items() if layer in own | activations},
        "Output Gradients": {layer: kept for layer, kept in output_gradients.items() if layer not in activations},
        "Gradients": {name: gradients[p][layer] for name, layer, p in names if layer in gradients.get(p, {})},
        "Parameters": {name: [parameters[short][layer]] for name, layer, short in names},
    }
    return [(f"Non-Finite {what}", counts(kept), None) for what, kept in shown.items()]


def quantile(numbers, share):
    """With the numbers of each quarter of a power of two evenly spread over it, as NumPy has it."""
    numbers = np.sort(numbers)
    mantissa, exponent = np.frexp(np.abs(numbers))
    ends = [np.ldexp(np.floor(mantissa * 8 + more) / 8, exponent) * np.sign(numbers) for more in (0, 1)]
    low, high = np.minimum(*ends), np.maximum(*ends)
    of_bin = low[:, None] == low
    rank = np.sum(np.tril(of_bin, -1), axis=1)
    placed = low + (rank + 0.5) / of_bin.sum(axis=1) * (high - low)
    return np.clip(np.quantile(placed, share), numbers[0], numbers[-1])


def show_distributions(tape):
    own = {layer for layer, _, _ in tape._parameters()}
    own |= {name for name, module in tape.model.named_modules() if isactivation(module)}
    shown = {
        layer: np.concatenate([now.ravel() for _, now in pairs])
        for layer, pairs in tape.new(tape.outputs).items()
        if layer in own
    }
    bands = [("q01", "q99"), ("q05", "q95"), ("q25", "q75")]
    quantiles = {
        layer: {band: tuple(quantile(numbers, int(edge[1:]) / 100) for edge in band) for band in bands}
        for layer, numbers in shown.items()
    }
    medians = {layer: {"q50": quantile(numbers, 0.5)} for layer, numbers in shown.items()}
    special = {layer: {"zero": np.sum(numbers == 0), "infinite": 0, "nan": 0} for layer, numbers in shown.items()}
    return (
        ("Output Distribution", medians, quantiles),
        low_and_high("Output Extremes", {layer: [numbers] for layer, numbers in shown.items()}),
        ("Output Special Elements", special, None),
    )


def show_update_ratios(tape):
    for short in ("weight", "bias"):
        updates, weights = tape.new(tape.updates[short]), tape.new(tape.weights[short])
        ratios = {
            layer: [np.linalg.norm(way) / np.linalg.norm(weight) for (_, way), (_, weight) in zip(*pairs, strict=True)]
            for layer, pairs in ((layer, (updates[layer], weights[layer])) for layer in updates)
        }
        values, ranges = lines_and_bands(ratios)
        yield (
            f"{short.title()} Update Ratio",
            values,
            {layer: {MINMAX: found[MINMAX]} for layer, found in ranges.items()},
        )


def all_parameters(tape):
    """Names of all parameters in model order, with their layer and own name."""
    return [(f"{layer}.{short}" if layer else short, layer, short) for layer, short, _ in tape._parameters()]


def show_signal_to_noise(tape):
    """Adam's second moments, done again; a step of one backward pass in one process shows no noise."""
    found = {}
    for name, layer, short in all_parameters(tape):
        second, sizes, gradients = 0.0, [], tape.gradients[short].get(layer, [])
        for step, gradient in enumerate(gradients, start=1):
            second = 0.999 * second + 0.001 * gradient**2
            sizes.append(np.sqrt(np.mean(gradient**2 / np.maximum(second / (1 - 0.999**step), 1e-16))))
        new = sizes[tape._ticked.get(id(gradients), 0) :]
        found |= {name: new} if new else {}
    return ("Gradient Noise Scale", {}, None), with_band("Adam Gradient RMS", found)


def show_facts(tape):
    empty, changed, checksums = {}, {}, {}
    for name, layer, short in all_parameters(tape):
        if tape.new(tape.gradients[short]).get(layer):
            empty[name] = {"mean": 1.0}
        updates = [np.any(way) for _, way in tape.new(tape.updates[short])[layer]]
        if len(tape.updates[short][layer]) == len(updates):
            del updates[0]  # the first step of all has none before it
        changed[name] = {"mean": np.mean(updates)}
        dtype = dict(tape.model.named_parameters())[name].detach().numpy().dtype
        checksums[name] = {"last": checksum_oracle.shown(tape.parameters(short)[layer].astype(dtype))}
    facts = {"Optimizer": 0.0, "Group": 0.0, "Learning Rate": 0.1}
    constant = [
        (f"Parameter {what}", {name: {"last": fact} for name in checksums}, None) for what, fact in facts.items()
    ]
    shares = ("Gradient Was Empty", empty, None), ("Parameter Changed", changed, None)
    return *shares, ("Parameter Checksum", checksums, None), *constant


class Mix(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Attending(nn.Module):
    """A model with attention among the entries of its last batch; one entry has nothing to choose from."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen, self.mix = inner, nn.Identity(), Mix()

    def forward(self, inputs):
        return self.mix(self.seen(self.inner(inputs))[None, None])[0, 0]


def show_attention(tape):
    entropies, largest, bounds = [], [], []
    for _, found in tape.new(tape.outputs).get("seen", []):
        logits = found @ found.T / np.sqrt(found.shape[1])
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        if len(found) > 1:
            entropies.append(np.mean(-(weights * np.log(weights)).sum(1) / np.log(len(found))))
            largest.append(logits.max())
            bounds.append((np.linalg.norm(found, axis=1).max() ** 2) / np.sqrt(found.shape[1]))
    return (
        ("Attention Entropy", *lines_and_bands({"mix": entropies})),
        ("Attention Entropy Error", {"mix": {"mean": 0.0}}, None),
        ("Attention Largest Logit", {"mix": {"max": np.max(largest)}}, None),
        ("Attention Logit Bound", {"mix": {"max": np.max(bounds)}}, None),
    )


class SignRouter(nn.Module):
    """Sends each entry to two experts: there is one for each sign of each feature."""

    def forward(self, x):
        scores = torch.cat([x, -x], dim=-1)
        return scores, scores.topk(2).indices


class Routed(nn.Module):
    """A model whose outputs are routed to experts that do nothing."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.router = inner, SignRouter()

    def forward(self, inputs):
        output = self.inner(inputs)
        self.router(output)
        return output


def show_routing(tape):
    chosen = [np.argsort(-scores, axis=1)[:, :2] for _, scores in tape.new(tape.outputs).get("router", [])]
    counts = [np.bincount(found.ravel(), minlength=4) for found in chosen]
    shares = [found[found > 0] / found.sum() for found in counts]
    entropies = [-np.sum(share * np.log(share)) / np.log(4) for share in shares]
    total = np.sum(counts, axis=0) / np.sum(counts)
    return (
        with_band("Routing Entropy", {"router": entropies}),
        ("Expert Shares", {"router": {f"expert {number}": share for number, share in enumerate(total)}}, None),
        ("Expert Load", {"router": {"largest": 4 * total.max(), "smallest": 4 * total.min()}}, None),
        ("Unused Experts", {"router": {"unused": np.sum(total == 0)}}, None),
        with_band("Dropped Tokens", {"router": [0.0] * len(chosen)}),
    )


class Seen(nn.Module):
    """Keeps what it gets in train mode, and whether gradients were enabled."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        if self.training:
            self.kept.append((torch.is_grad_enabled(), x.detach().double().numpy().copy()))
        return x


class Normed(nn.Module):
    """A model whose outputs are normalised in double precision, all features together."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen, self.norm = inner, Seen(), nn.BatchNorm1d(1).double()

    def forward(self, inputs):
        return self.norm(self.seen(self.inner(inputs)[:, None].double())).float()[:, 0]


def show_batch_norms(tape):
    """Running statistics begin with 0 and 1."""
    shifts, ratios, mean, variance = [], [], 0.0, 1.0
    for has_grad, batch in tape.model.seen.kept:
        if has_grad:
            shifts.append(abs(batch.mean() - mean) / np.sqrt(variance + 1e-5))
            ratios.append((batch.var(ddof=1) + 1e-5) / (variance + 1e-5))
        mean, variance = 0.9 * mean + 0.1 * batch.mean(), 0.9 * variance + 0.1 * batch.var(ddof=1)
    new = len(tape.new(tape.outputs)["norm"])
    return (
        with_band("BatchNorm Mean Shift", {"norm": shifts[-new:]}),
        with_band("BatchNorm Variance Ratio", {"norm": ratios[-new:]}),
    )


def spread_of(array):
    """The largest standard deviation of a column over the smallest, and how many columns are constant."""
    stds = array.std(axis=0)[np.ptp(array, axis=0) > 0]
    return stds.max() / stds.min() if len(stds) else 1.0, array.shape[1] - len(stds)


def with_band(tag, series):
    """The mean of samples, with a band from the smallest to the largest."""
    values, ranges = lines_and_bands(series)
    return tag, values, {layer: {("min", "max"): found["min", "max"]} for layer, found in ranges.items()}


def low_and_high(tag, series):
    found = {layer: {"min": min(x.min() for x in xs), "max": max(x.max() for x in xs)} for layer, xs in series.items()}
    return tag, found, None


def moments(what, series):
    """What is shown of all floating data."""
    means = {layer: [x.mean() for x in arrays] for layer, arrays in series.items()}
    stds = {layer: [x.std() for x in arrays] for layer, arrays in series.items()}
    nonfinite = {layer: {"max": 0} for layer in series}
    moments = [with_band(f"{what} Mean", means), with_band(f"{what} Std", stds), low_and_high(f"{what} Range", series)]
    return *moments, (f"{what} Nonfinite Elements", nonfinite, None)


def show_inputs(tape):
    inputs = [data[0] for data in tape.data]
    *small, nonfinite = moments("Input", {"input": inputs})
    spreads, constant = zip(*map(spread_of, inputs), strict=True)
    spread = with_band("Input Feature Spread", {"input": spreads})
    return *small, spread, ("Input Constant Features", {"input": {"mean": np.mean(constant)}}, None), nonfinite


def show_targets(tape):
    _, outputs, targets = zip(*tape.data, strict=True)
    row_sums = low_and_high("Output Row Sum", {"output": [output.sum(axis=1) for output in outputs]})
    no_classes = [
        ("Class Perplexity Of Batch", {}, {}),
        *((f"Class{tag}", {}, None) for tag in ("es", " Ratio", " Shares")),
    ]
    return (
        *moments("Loss Input", {"output": outputs, "target": targets}),
        row_sums,
        *no_classes,
        ("Ignored Targets", {}, {}),
    )


def show_health(tape):
    """By activation, with channels in dimension 1; a window of 256 entries does not get full here."""
    found = {name: {"zeros": [], "batch": [], "units": []} for name in tape.new(tape.outputs)}
    for name, pairs in tape.new(tape.outputs).items():
        for _, now in pairs if isactivation(dict(tape.model.named_modules())[name]) else ():
            scale = np.sqrt(np.mean(now**2))
            found[name]["zeros"].append(np.mean(now == 0))
            found[name]["units"].append(now.std(axis=1).mean() / scale)
            if len(now) > 1:
                found[name]["batch"].append(now.std(axis=0).mean() / scale)

    def shown(what, series):
        return with_band(f"Activation {what}", {name: own[series] for name, own in found.items() if own[series]})

    nothing = [(f"Activation {what}", {}, {}) for what in ("Saturation", "Dead Units")]
    return shown("Zeros", "zeros"), *nothing, shown("Batch Spread", "batch"), shown("Unit Spread", "units")


class Case(NamedTuple):
    """How to make a lens for (model, optimizer, loss_fn), and what it shows."""

    build: object
    show: object
    samples_at_tick: bool = False  # looks at the model itself at a tick, so that no tick is empty
    wrap: object = lambda model: model  # makes a model that it can look at
    optimizer: object = None  # makes an optimizer that it can look at
    variants: tuple = ()  # other ways to make it, which gather in another way


LEAVES = (nn.Linear, nn.Conv2d, nn.Flatten, nn.Unflatten, nn.Dropout)
CASES = {
    "ActivationHealth": Case(lambda t: lens.ActivationHealth(), show_health),
    "Attention": Case(lambda t: lens.Attention(), show_attention, wrap=Attending),
    "Attribute": Case(
        lambda t: lens.Attribute(next(name for name, _ in t.model.named_parameters() if name.endswith("weight"))),
        show_first_weight,
    ),
    "BatchNormStatistics": Case(lambda t: lens.BatchNormStatistics(), show_batch_norms, wrap=Normed),
    "Distribution": Case(
        lambda t: lens.Distribution(),
        show_distributions,
        variants=(lambda t: lens.Distribution("gradient"), lambda t: lens.Distribution("parameter")),
    ),
    "GradientNorm": Case(lambda t: lens.GradientNorm(), show_gradient_norm),
    "InputStatistics": Case(lambda t: lens.InputStatistics(), show_inputs),
    "Routing": Case(lambda t: lens.Routing(), show_routing, wrap=Routed),
    "SignalToNoise": Case(
        lambda t: lens.SignalToNoise(t.optimizer),
        show_signal_to_noise,
        optimizer=partial(torch.optim.Adam, lr=0.01, fused=True),
    ),
    "SpectralNorm": Case(lambda t: lens.SpectralNorm(iterations=500), show_spectra, samples_at_tick=True),
    "TargetStatistics": Case(lambda t: lens.TargetStatistics(t.loss_fn), show_targets),
    "LossMetrics": Case(
        lambda t: lens.LossMetrics(loss_fn=t.loss_fn, metrics="score", metrics_range="std"), show_losses
    ),
    "NonFinite": Case(lambda t: lens.NonFinite(), show_nonfinite, samples_at_tick=True),
    "OutputActivation": Case(lambda t: lens.OutputActivation(include=LEAVES), show_activations),
    "OutputGradientGeometry": Case(
        lambda t: lens.OutputGradientGeometry(skip_activation=False),
        lambda tape: geometry("Output Gradient", tape.new(tape.output_gradients)),
    ),
    "OutputNorm": Case(lambda t: lens.OutputNorm(include=LEAVES), show_output_norms),
    "ParameterCond": Case(lambda t: lens.ParameterCond(), show_conditions, samples_at_tick=True),
    "ParameterFacts": Case(lambda t: lens.ParameterFacts(t.optimizer), show_facts),
    "ParameterGradientActivation": Case(lambda t: lens.ParameterGradientActivation(), show_gradient_activations),
    "ParameterGradientGeometry": Case(
        lambda t: lens.ParameterGradientGeometry(), partial(parameter_geometry, "Gradient", "gradients")
    ),
    "ParameterNorm": Case(lambda t: lens.ParameterNorm(), show_parameter_norms, samples_at_tick=True),
    "ParameterUpdateGeometry": Case(
        lambda t: lens.ParameterUpdateGeometry(t.optimizer), partial(parameter_geometry, "Update", "updates")
    ),
    "UpdateRatio": Case(lambda t: lens.UpdateRatio(t.optimizer), lambda tape: list(show_update_ratios(tape))),
}


@pytest.fixture(params=LENSES)
def case(request):
    assert request.param in CASES, f"{request.param} is exported: give it an entry in CASES"
    return CASES[request.param]


@pytest.fixture
def situation(situation, case):
    model, batches = situation
    return case.wrap(model), batches


@pytest.fixture
def new_net(new_net, case):
    return lambda **extra: case.wrap(new_net(**extra))


@pytest.fixture
def task(task, case):
    def build(*models):
        made = task(*models)
        if case.optimizer is not None:
            made.optimizer = case.optimizer(made.optimizer.param_groups[0]["params"])
        return made

    return build


def numbers(calls):
    """Every number of calls ``(tag, values, ranges)`` by its place in them."""
    return {
        (tag, which, layer, name): value
        for tag, *parts in calls
        for which, part in zip(("values", "ranges"), parts, strict=True)
        for layer, found in (part or {}).items()
        for name, value in found.items()
    }


@pytest.fixture
def assert_shown(shown, close):
    """Compare the calls of one tick with the expected ones, the order of everything included."""

    def compare(number, expected):
        assert [call[:2] for call in shown.calls] == [(number, tag) for tag, _, _ in expected]
        assert all(type(values) is OrderedDict for _, _, values, _ in shown.calls)
        assert [ranges is None for *_, ranges in shown.calls] == [ranges is None for *_, ranges in expected]
        found, wanted = numbers(call[1:] for call in shown.calls), numbers(expected)
        assert found
        assert list(found) == list(wanted)
        assert all(found[place] == close(value) for place, value in wanted.items())
        shown.calls.clear()

    return compare


def in_situations(one_of):
    """Each lens in each situation; this share of the pairs is fast, and has every lens and every situation."""
    names = [*SITUATIONS]

    def is_fast(case, situation):
        return (LENSES.index(case) + names.index(situation)) % one_of == 0

    pairs = some_fast(product(LENSES, names), is_fast)
    return pytest.mark.parametrize(("case", "situation"), pairs, indirect=True)


@in_situations(one_of=3)
def test_numbers_are_those_of_a_bare_model_in_model_order(case, situation, task, epoch, record, watch, assert_shown):
    model, batches = situation
    bare, tape = record(model)
    plain, watched = task(bare), task(model)
    inspector = watch(model, case.build(watched))
    for number in (1, 2, 3):
        state = torch.get_rng_state()
        epoch(watched, batches, inspector)
        inspector.tick_epoch()
        torch.set_rng_state(state)
        epoch(plain, batches, tape=tape)
        assert_shown(number, case.show(tape))
        tape.tick()


@pytest.mark.parametrize("defaults", [partial(torch.device, "meta"), partial(default_dtype, torch.float64)])
def test_numbers_do_not_depend_on_default_device_and_dtype(
    case, defaults, task, epoch, record, watch, assert_shown, new_net, make_batches
):
    model, batches = new_net(), make_batches()
    bare, tape = record(model)
    watched, plain = task(model), task(bare)
    with defaults():
        inspector = watch(model, case.build(watched))
        epoch(watched, batches, inspector)
        inspector.tick_epoch()
    epoch(plain, batches, tape=tape)
    assert_shown(1, case.show(tape))


@in_situations(one_of=4)
def test_training_is_bit_identical_and_no_hook_stays(case, situation, task, epoch, watch, hooks_on):
    model, batches = situation
    plain, watched = task(copy.deepcopy(model)), task(model)
    with torch.random.fork_rng():
        expected = [loss for _ in range(2) for loss in epoch(plain, batches)]
        expected_state = torch.get_rng_state()
    inspector = watch(model, case.build(watched))
    losses = []
    for _ in range(2):
        losses += epoch(watched, batches, inspector)
        inspector.tick_epoch()
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), plain.model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), expected_state)
    assert hooks_on(model, watched.optimizer, watched.loss_fn)
    inspector.detach()
    assert not hooks_on(model, watched.optimizer, watched.loss_fn)


@pytest.fixture
def idle_hooks(task, train, new_net, make_batches, watch, hooks_on):
    """The number of hooks on layers and parameters after each of ten steps, of which every fifth is observed."""

    def count(build):
        watched = task(new_net())
        inspector = watch(watched.model, build(watched), optimizer=watched.optimizer, every=5)
        found = []
        for _ in range(10):
            train(watched.model, watched.optimizer, make_batches((5,)), watched.loss_fn)
            found.append(len(hooks_on(*watched.model.children())))
        inspector.detach()
        return found

    return count


# monitors of Attribute see every pass: their reducers may be running means
@pytest.mark.parametrize("case", [name for name in LENSES if name != "Attribute"], indirect=True)
def test_in_idle_steps_no_layer_has_a_hook(case, idle_hooks):
    for build in (case.build, *case.variants):
        hooks = idle_hooks(build)
        assert hooks[:2] == hooks[5:7] == [0, 0]  # put back after the third or fourth step
        assert hooks[4] == hooks[9] == 0


@in_situations(one_of=4)
def test_nothing_waits_for_the_device_between_ticks(case, situation, task, epoch, watch, monkeypatch):
    monkeypatch.setattr(distribution, "may_look", lambda numbers: False)  # as on a device

    class CountSyncs(TorchDispatchMode):
        syncs = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.syncs += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
            return func(*args, **(kwargs or {}))

    model, batches = situation
    watched = task(model)
    inspector = watch(model, case.build(watched))
    with CountSyncs() as counter:
        epoch(watched, batches, inspector)
        assert counter.syncs == 0
        watched.loss_fn(model(batches[0][0]), batches[0][1]).item()
    assert counter.syncs == 1


def test_copy_of_an_unattached_lens_shows_the_same(case, task, epoch, watch, new_net, shown, make_batches):
    original = task(new_net())
    original.lens = case.build(original)
    copied = pickle.loads(pickle.dumps(original))
    for one in (original, copied):
        inspector = watch(one.model, one.lens)
        epoch(one, make_batches(), inspector)
        inspector.tick_epoch()
    half = len(shown.calls) // 2
    assert numbers(call[1:] for call in shown.calls[:half])
    assert shown.calls[:half] == shown.calls[half:]
    inspector.detach()
    assert pickle.loads(pickle.dumps(copied.lens))


def test_second_model_starts_clean(case, task, epoch, watch, record, shown, new_net, make_batches, assert_shown):
    first, second = new_net(), new_net(spare=nn.Linear(2, 2))
    watched = task(first, second)
    inspector = watch(first, case.build(watched))
    epoch(watched, make_batches(), inspector)
    inspector.tick_epoch()
    epoch(watched, make_batches(), inspector)
    inspector.attach(second)
    bare, tape = record(second)
    watched.model = second
    shown.calls.clear()
    epoch(watched, make_batches((3, 3)), inspector)
    inspector.tick_epoch()
    epoch(task(bare), make_batches((3, 3)), tape=tape)
    assert_shown(1, case.show(tape))


def test_tick_without_data_shows_every_tag_empty(case, task, epoch, watch, shown, new_net, make_batches):
    watched = task(new_net())
    inspector = watch(watched.model, case.build(watched))
    inspector.tick_epoch()
    epoch(watched, make_batches(), inspector)
    inspector.tick_epoch()
    inspector.tick_epoch()
    for calls in ([call for call in shown.calls if call[0] == number] for number in (1, 3)):
        assert [tag for _, tag, *_ in calls] == list(shown.tags)
        assert case.samples_at_tick == any(values for _, _, values, _ in calls)
        assert all(type(values) is OrderedDict and not ranges for _, _, values, ranges in calls)


def accumulators(lens):
    """All accumulators of a lens, whatever holds them."""
    values = [value for kept in lens._preprocessors for value in kept.value.values()]
    parts = [
        value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else (value,)
        for value in values
    ]
    return [accumulator for part in parts for accumulator in part]


def test_two_halves_merge_to_the_whole_epoch(case, task, train, watch, shown, new_net, make_batches, close):
    watched = task(new_net())
    kept = []
    for ticks in ((2, 5), (5,)):
        one = copy.deepcopy(watched)
        one_lens = case.build(one)
        inspector = watch(one.model, one_lens)
        shown.flush = lambda one_lens=one_lens: kept.append(accumulators(one_lens))
        for step, batch in enumerate(make_batches((5,) * 5), start=1):
            train(one.model, one.optimizer, [batch], one.loss_fn)
            if step in ticks:
                inspector.tick_epoch()
            elif step == 2 and case.samples_at_tick:
                one_lens.collect_data()
    first, second, whole = kept
    assert whole
    for left, right, both in zip(first, second, whole, strict=True):
        left.merge(right)
        assert (left.count, left.nonfinite) == (both.count, both.nonfinite)
        assert [left.mean, left.var, left.min_, left.max_] == close([both.mean, both.var, both.min_, both.max_])
