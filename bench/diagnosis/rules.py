"""Four published rule sets, from their descriptions, on numbers that plain hooks record.

AUTOTRAINER and DeepDiagnosis are studies of Keras programs, SageMaker Debugger is a service, neurolens a package. Each
verdict stands for all symptoms that it may mean, so that its name is judged kindly. All thresholds are the published
ones. Where an "epoch" is needed, a run has twelve of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .program import VALIDATIONS, Program

Array = NDArray[Any]
Verdict = tuple[int, str, str | None]
"""The step at which it can be said, the symptoms, the layer."""

SIGMOIDS, TANHS, RELUS = (nn.Sigmoid, nn.LogSigmoid), (nn.Tanh,), (nn.ReLU, nn.ReLU6)


@dataclass
class Recording:
    """Numbers of each step, and of each layer with a weight or an activation.

    Attributes:
        layers: names of the layers with weights, in the order in which they run.
        acts: names of the activations, in the same order.
        numbers: arrays ``[step, layer]`` or ``[step, activation]`` or ``[step]``, by name.
        kinds: what each activation is.
        epoch: steps of one epoch.
    """

    layers: list[str]
    acts: list[str]
    kinds: list[type]
    epoch: int
    numbers: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_") or name not in self.__dict__.get("numbers", {}):
            raise AttributeError(name)
        return self.numbers[name]


def record(program: Program) -> Recording:
    """Run the program, and keep what the rules need."""
    known = dict(program.model.named_modules())
    order = list(dict.fromkeys(forward_order(program)))
    layers = [n for n in order if isinstance(getattr(known[n], "weight", None), nn.Parameter)]
    acts = [n for n in order if isinstance(known[n], (*SIGMOIDS, *TANHS, *RELUS))]
    rows: dict[str, list[Any]] = {}
    now: dict[str, Any] = {}
    hooks = [known[n].register_forward_hook(_see(now, n)) for n in acts]
    hooks.append(program.loss_fn.register_forward_hook(_see_loss(now, program)))
    weights = [known[n].weight for n in layers]
    gradients: list[Tensor] = []
    before = [w.detach().clone() for w in weights]
    hooks += [
        optimizer.register_step_pre_hook(lambda *_: gradients.extend(_gradients(weights) if not gradients else []))
        for optimizer in program.optimizers
    ]
    for _ in program.run():
        weights = [known[n].weight for n in layers]
        given = torch.stack([_facts_of_gradient(g) for g in gradients or _gradients(weights)])
        moved = [w.detach() - b for w, b in zip(weights, before, strict=True)]
        own = torch.stack([_facts_of_weight(b, m) for b, m in zip(before, moved, strict=True)])
        facts = {"grad": given, "weight": own, **now}
        facts["act"] = torch.stack([now.get(f"act {n}", torch.full((5,), torch.nan)) for n in acts]) if acts else None
        facts["lr"] = program.groups[0]["lr"]
        for name, value in facts.items():
            if not name.startswith("act "):
                rows.setdefault(name, []).append(value)
        before = [w.detach().clone() for w in weights]
        gradients.clear()
        now.clear()
    for hook in hooks:
        hook.remove()
    return Recording(layers, acts, [type(known[n]) for n in acts], program.steps // VALIDATIONS, _columns(rows))


def forward_order(program: Program) -> list[str]:
    """Names of the leaf modules, in the order in which they run."""
    order: list[str] = []
    leaves = {n: m for n, m in program.model.named_modules() if not list(m.children())}
    hooks = [m.register_forward_hook(lambda *_, n=n: order.append(n)) for n, m in leaves.items()]
    was_training = program.model.training
    program.model.eval()
    with torch.no_grad():
        program.model(program.train[0][:2])
    program.model.train(was_training)
    for hook in hooks:
        hook.remove()
    return order


def _see(now: dict[str, Any], name: str) -> Callable[..., None]:
    def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if module.training:
            x, y = inputs[0].detach().float().flatten(0, -2), output.detach().float().flatten(0, -2)
            shares = [(y <= 0).float().mean(), ((y != 0).float().mean(0) < 0.01).float().mean()]
            shares += [(x.abs() >= limit).float().mean() for limit in (5.0, 9.4999)]
            now[f"act {name}"] = torch.stack([*shares, ((x < -23) | (x > 17)).float().mean()])

    return see


def _see_loss(now: dict[str, Any], program: Program) -> Callable[..., None]:
    def see(module: nn.Module, inputs: tuple[Tensor, ...], loss: Tensor) -> None:
        outputs, y = inputs[0].detach().float(), inputs[1].detach()
        if not program.model.training:
            now["valid"] = float(loss)
            return
        now["loss"] = float(loss.detach())
        is_class = not y.is_floating_point() and outputs.dim() == 2
        now["accuracy"] = float((outputs.argmax(-1) == y).float().mean()) if is_class else np.nan
        now["outputs"] = torch.stack([outputs.min(), outputs.max(), outputs.abs().mean(), outputs.abs().sum(-1).mean()])
        now["targets"] = torch.stack([y.min(), y.max()]).float()
        now["input"] = float(program.train[0].abs().max()) if program.train[0].is_floating_point() else 0.0
        counts = torch.bincount(y.flatten()).float() if not y.is_floating_point() else torch.ones(1)
        now["classes"] = float(counts.max() / counts.min().clamp_min(1))

    return see


def _gradients(weights: list[nn.Parameter]) -> list[Tensor]:
    return [torch.zeros_like(w) if w.grad is None else w.grad.detach().clone() for w in weights]


def _facts_of_gradient(g: Tensor) -> Tensor:
    g = g.float()
    low, high = g.flatten().quantile(torch.tensor([0.05, 0.95])) if g.isfinite().all() else (g.sum(), g.sum())
    return torch.stack([g.norm(), g.abs().mean(), (g == 0).float().mean(), high - low])


def _facts_of_weight(w: Tensor, moved: Tensor) -> Tensor:
    w, moved = w.float(), moved.float()
    return torch.stack([w.norm(), w.var() if w.numel() > 1 else w.sum() * 0, moved.norm(), (moved.abs().max() <= 1e-8)])


def _columns(rows: dict[str, list[Any]]) -> dict[str, Any]:
    names = {
        "grad": ("grad_norm", "grad_mean", "grad_zero", "grad_range"),
        "weight": ("norm", "variance", "moved", "unchanged"),
        "act": ("dead_values", "dead_units", "beyond_5", "tanh_flat", "sigmoid_flat"),
        "outputs": ("out_min", "out_max", "out_mean", "out_sum"),
        "targets": ("target_min", "target_max"),
    }
    found: dict[str, Any] = {}
    for name, values in rows.items():
        if name in names and values[0] is not None:
            table = torch.stack([torch.as_tensor(v) for v in values]).numpy().astype(np.float64)
            found |= {column: table[..., number] for number, column in enumerate(names[name])}
        elif name not in names:
            found[name] = np.array(values, np.float64)
    return found


def _first(found: Array) -> int | None:
    """The first step at which something is true."""
    hits = np.flatnonzero(found)
    return int(hits[0]) if len(hits) else None


def _each(table: Array | None, names: list[str], symptoms: str) -> Iterator[Verdict]:
    """A verdict for the first step and the first layer where a table ``[step, layer]`` is true."""
    if table is not None and table.any():
        step = int(np.flatnonzero(table.any(1))[0])
        yield step, symptoms, names[int(np.flatnonzero(table[step])[0])]


def _once(found: Array, symptoms: str) -> Iterator[Verdict]:
    if (step := _first(found)) is not None:
        yield step, symptoms, None


def autotrainer(r: Recording, theta: float = 0.6) -> Iterator[Verdict]:
    """Checks at the end of epochs; most need an accuracy, which must be bad."""
    ends = np.arange(r.epoch - 1, len(r.loss), r.epoch)
    best = np.maximum.accumulate(r.accuracy)
    broken = ~np.isfinite(r.grad_norm).all(1) | ~np.isfinite(r.norm).all(1)
    explodes = broken & (~np.isfinite(r.loss) | (r.loss > 1e3))
    yield from _once(explodes, "exploding_signal|nonfinite|step_too_large")
    if np.isnan(r.accuracy).all():
        return
    for end in ends:
        if not best[end] < theta:
            continue
        first, last = r.grad_norm[end][0], r.grad_norm[end][-1]
        if first / max(last, 1e-30) < 1e-3 and first < 1e-4:
            yield int(end), "vanishing_gradient", None
        if first / max(last, 1e-30) > 70:
            yield int(end), "exploding_signal", None
        if (r.grad_zero[end] >= 0.7).any():
            yield int(end), "dead_units|no_gradient|underflow", r.layers[int(np.argmax(r.grad_zero[end] >= 0.7))]
    each = r.accuracy[ends]
    turns = [abs(b - a) >= 0.03 and (b - a) * (c - b) < 0 for a, b, c in zip(each, each[1:], each[2:], strict=False)]
    if len(ends) and best[-1] < theta:
        if sum(turns) >= 0.2 * len(ends):
            yield int(ends[-1]), "oscillation|step_too_large|gradient_noise", None
        if len(each) > 1 and np.diff(each).max() < 0.01:
            yield int(ends[-1]), "no_progress", None


def deep_diagnosis(r: Recording) -> Iterator[Verdict]:
    """Numerical errors first, then activations, gradients and the loss; then what may lie behind."""
    for table in (r.grad_norm, r.norm):
        yield from _each(~np.isfinite(table), r.layers, "nonfinite")
    yield from _once(~np.isfinite(r.loss), "nonfinite")
    end = len(r.loss) - 1
    if r.acts:
        relus = np.array([kind in RELUS for kind in r.kinds])
        late = (r.dead_values >= 0.7) & relus & (np.arange(len(r.loss)) == end)[:, None]
        yield from _each(late, r.acts, "dead_units")
        every5 = np.zeros(len(r.loss), bool)
        every5[5 * r.epoch - 1 :: 5 * r.epoch] = True
        yield from _each((r.beyond_5 > 0.5) & ~relus & every5[:, None], r.acts, "saturated_activation")
    at_ends = np.zeros((len(r.loss), 1), bool)
    at_ends[r.epoch - 1 :: r.epoch] = True
    yield from _each((r.grad_mean < 1e-7) & at_ends, r.layers, "vanishing_gradient|no_gradient|underflow")
    outside = (r.target_min < r.out_min - 1e-6) & (r.target_max > r.out_max + 1e-6) & (np.arange(end + 1) == end)
    if np.isnan(r.accuracy).all():
        yield from _once(outside, "output_loss_mismatch")
    ends = np.arange(r.epoch - 1, len(r.loss), r.epoch)
    for values, length in ((r.loss[ends], 5), (r.accuracy[ends], 20)):
        same = [k for k in range(length, len(values) + 1) if np.ptp(values[k - length : k]) == 0]
        if same:
            behind = "step_too_large|no_progress|output_loss_mismatch|no_gradient"
            if r.input[0] > 1:
                behind += "|input_scale"
            yield int(ends[same[0] - 1]), behind, None
    yield from _each(((r.variance < 1e-5) | (r.variance > 10))[:1], r.layers, "symmetric_units|exploding_signal")
    ratio = r.lr[:, None] * r.grad_norm / np.maximum(r.norm, 1e-12)
    stuck = r.loss[-1] >= r.loss[0]
    if stuck:
        yield from _each((ratio > 0.1) & at_ends, r.layers, "step_too_large|exploding_signal")
        yield from _each((ratio < 1e-5) & at_ends, r.layers, "no_progress|no_update")


def sagemaker(r: Recording, all_rules: bool = False) -> Iterator[Verdict]:
    """Rules of the service at every step; those that compare single noisy batches only if asked for."""
    yield from _each(~np.isfinite(r.grad_norm) | ~np.isfinite(r.norm), r.layers, "nonfinite|exploding_signal")
    yield from _once(~np.isfinite(r.loss), "nonfinite|exploding_signal")
    if r.acts:
        kinds = {name: np.array([kind in of for kind in r.kinds]) for name, of in (("r", RELUS), ("t", TANHS))}
        yield from _each((r.dead_units > 0.5) & kinds["r"], r.acts, "dead_units")
        yield from _each((r.tanh_flat > 0.5) & kinds["t"], r.acts, "saturated_activation")
        yield from _each((r.sigmoid_flat > 0.5) & ~kinds["r"] & ~kinds["t"], r.acts, "saturated_activation")
    yield from _each(r.grad_mean < 1e-7, r.layers, "vanishing_gradient|no_gradient|underflow")
    yield from _each(r.moved > 10 * np.maximum(r.norm, 1e-12), r.layers, "step_too_large")
    three = r.unchanged.astype(bool)
    three = np.concatenate([np.zeros((2, three.shape[1]), bool), three[2:] & three[1:-1] & three[:-2]])
    yield from _each(three, r.layers, "no_update|no_progress")
    yield from _once(r.classes > 10, "unrepresentative_batches")
    if not all_rules:
        return
    spread = r.variance.max(1) / np.maximum(r.variance.min(1), 1e-12)
    poor = ((spread > 10) | (r.grad_range < 1e-3).any(1)) & (np.arange(len(r.loss)) < 10)
    yield from _once(poor, "symmetric_units|exploding_signal|bad_initial_loss|vanishing_gradient")
    later = np.arange(10, len(r.loss), 10)
    rises = later[~(r.loss[later] < r.loss[later - 10])]
    if len(rises):
        yield int(rises[0]), "no_progress|step_too_large", None
    for step in np.flatnonzero(np.isfinite(r.valid))[:1] if hasattr(r, "valid") else ():
        if (r.valid[step] - r.loss[step]) / r.loss[step] > 0.1:
            yield int(step), "overfitting|no_label_signal", None


def neurolens(r: Recording) -> Iterator[Verdict]:
    """Ten checks, here at every step."""
    loss, best = r.loss, np.minimum.accumulate(np.where(np.isfinite(r.loss), r.loss, np.inf))
    yield from _once(~np.isfinite(loss), "nonfinite|step_too_large")
    yield from _once(loss > 10 * loss[0], "step_too_large|loss_spike")
    yield from _once((loss > 3 * best) & (np.arange(len(loss)) >= 10), "step_too_large|loss_spike|oscillation")
    quarter = 3 * len(loss) // 4
    if not loss[quarter:].min() < 0.99 * loss[:quarter].min():
        yield len(loss) - 1, "no_progress", None
    if hasattr(r, "valid"):
        ends = np.arange(r.epoch - 1, len(loss), r.epoch)[: len(r.valid)]
        lowest = np.minimum.accumulate(r.valid)
        falls = np.array([loss[max(0, e - r.epoch) : e + 1].mean() < loss[: r.epoch].mean() for e in ends])
        hits = np.flatnonzero((r.valid[: len(ends)] > 1.05 * lowest[: len(ends)]) & falls)
        if len(hits):
            yield int(ends[hits[0]]), "overfitting|no_label_signal", None
    yield from _each(r.grad_norm > 100, r.layers, "exploding_signal|step_too_large")
    yield from _each(r.grad_norm < 1e-8, r.layers, "vanishing_gradient|no_gradient|underflow|dead_units")
    ratio = r.moved / np.maximum(r.norm, 1e-12)
    yield from _each((ratio > 0.05) & (r.norm > 0), r.layers, "step_too_large")
    yield from _each((ratio < 1e-6) & (r.norm > 0), r.layers, "no_progress|no_update")
    if r.acts:
        relus = np.array([kind in RELUS for kind in r.kinds])
        yield from _each((r.dead_units > 0.5) & relus, r.acts, "dead_units")


RULES: dict[str, Callable[[Recording], Iterator[Verdict]]] = {
    "AUTOTRAINER": autotrainer,
    "DeepDiagnosis": deep_diagnosis,
    "SageMaker Debugger": sagemaker,
    "neurolens": neurolens,
}


def findings(recording: Recording, rules: Callable[[Recording], Iterator[Verdict]]) -> list[dict[str, Any]]:
    """What the rules say, earliest first, each verdict once."""
    said: dict[str, dict[str, Any]] = {}
    with np.errstate(all="ignore"):
        for step, symptom, layer in sorted(rules(recording), key=lambda verdict: verdict[0]):
            one = {"symptom": symptom, "severity": "warning", "layer": layer, "step": step, "detected_at": step}
            said.setdefault(symptom, {**one, "caused_by": None, "remedy": None})
    return list(said.values())
