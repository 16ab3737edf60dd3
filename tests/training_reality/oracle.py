"""What must have been recorded: a journal done again in float64, by autograd alone, with nothing of the library."""

import copy
import math
from collections import defaultdict
from functools import partial

import torch
from torch import nn

from tests.training_reality import models
from tests.training_reality.journal import Backward, Clip, Step, Tick, ZeroGrad

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)
MEASURED = (nn.Linear, nn.Conv1d, nn.Embedding, nn.LSTM, nn.GRU, nn.LayerNorm, nn.MultiheadAttention)


class Oracle:
    """Reads a journal and writes, for each tick, ``{(tag, layer, statistic): value}`` and the number of the step."""

    def __init__(self, model, case):
        self.model, self.case = plain_copy(model), case
        self.samples, self.previous = defaultdict(list), {}
        self.accumulated, self.at_last_backward = {}, {}
        self.weights, self.steps, self.ticks, self.counts = {}, 0, [], []
        self.watched = watched_parameters(self.model, case)
        self.facts = Facts()

    def read(self, journal):
        verbs = {Backward: self.backward, ZeroGrad: self.zero_grad, Clip: self.clip, Step: self.step, Tick: self.tick}
        for event in journal:
            verbs[type(event)](event)
        return self.ticks

    def backward(self, event):
        self.weights = event.weights
        blind = self.case.view == "backward"  # without an optimizer nobody knows of a scale
        calls, loss = self.forward(event)
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        outputs = [(layer, module, out) for layer, module, out in calls if out.requires_grad]
        wanted = [*named.values(), *(out for *_, out in outputs)]
        gradients = torch.autograd.grad(loss * event.scale if blind else loss, wanted, allow_unused=True)
        added = {name: gradient for name, gradient in zip(named, gradients, strict=False) if gradient is not None}
        self.facts.backward(added, self.accumulated)
        for name, gradient in zip(named, gradients, strict=False):
            if gradient is not None:
                self.accumulated[name] = self.accumulated.get(name, 0) + gradient
        self.at_last_backward = dict(self.accumulated)
        for layer, module, out in calls:
            self.output(layer, module, out.detach())
        reached = {name for name, gradient in zip(named, gradients, strict=False) if gradient is not None}
        for (layer, module, _), gradient in reversed([*zip(outputs, gradients[len(named) :], strict=True)]):
            if gradient is not None and is_leaf(module) and not isinstance(module, ACTIVATIONS):
                self.geometry("Output Gradient", layer, gradient)
        self.steps += blind
        for name in sorted(reached if blind else reached - event.owned):
            self.parameter("Gradient", name, self.accumulated[name])

    def forward(self, event):
        """The calls of all layers, in order, and the loss."""
        calls, handles = [], []
        parameters = dict(self.model.named_parameters())
        if any(isinstance(p, nn.UninitializedParameter) for p in parameters.values()):
            event.loss_of(self.model, torch.float64)
            parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(event.weights[name])
                parameter.requires_grad_(name in event.trainable)
        for layer, module in layers_of(self.model):
            handles.append(module.register_forward_hook(lambda m, _, out, at=layer: calls.append((at, m, first(out)))))
            look = LOOKS.get(type(module)) if "routing" in self.case.records else None
            if look is not None:
                handles.append(module.register_forward_hook(partial(look, self.samples, layer)))
        loss = event.loss_of(self.model, torch.float64)
        for handle in handles:
            handle.remove()
        return calls, loss

    def output(self, layer, module, out):
        if isinstance(module, ACTIVATIONS + MEASURED):
            self.samples["Output Norm", layer].append(out.reshape(len(out), -1).norm(dim=1).mean().item())
        if isinstance(module, (*ACTIVATIONS, nn.Dropout)):
            active = (out.abs() > 1e-8).movedim(self.case.channel_dim, 0).flatten(1)
            self.samples["activation_rate", layer].append(active.double().mean().item())
            self.samples["death_rate", layer].append((~active.any(dim=1)).double().mean().item())

    def zero_grad(self, event):
        self.accumulated = {name: g for name, g in self.accumulated.items() if name not in event.owned}

    def clip(self, event):
        total = torch.stack([g.square().sum() for g in self.accumulated.values()]).sum().sqrt()
        factor = min(1.0, event.max_norm / (total.item() + 1e-6))
        self.accumulated = {name: g * factor for name, g in self.accumulated.items()}

    def step(self, event):
        self.steps += event.optimizer == 0 and self.case.view != "backward"
        self.weights = event.after
        self.facts.step(event, self.accumulated)
        taken = self.at_last_backward if self.case.view == "before_clip" else self.accumulated
        for name in sorted(event.owned):
            if event.skipped:
                self.cut("Gradient", name)
                self.cut("Update", name)
                continue
            if name in taken and self.case.view != "backward":
                self.parameter("Gradient", name, taken[name])
            self.parameter("Update", name, event.after[name] - event.before[name])
            self.ratio(name, event.before[name], event.after[name])

    def parameter(self, what, name, tensor):
        if name in self.watched:
            layer, parameter = self.watched[name]
            self.geometry(f"{parameter} {what}".title(), layer, tensor)

    def ratio(self, name, before, after):
        if name in self.watched and before.any():
            layer, parameter = self.watched[name]
            ratio = (after - before).norm() / before.norm()
            self.samples[f"{parameter} Update Ratio".title(), layer].append(ratio.item())

    def cut(self, what, name):
        if name in self.watched:
            layer, parameter = self.watched[name]
            key = f"{parameter} {what}".title(), layer
            if key in self.previous:
                self.previous[key] = torch.empty(0)  # compares with nothing

    def geometry(self, what, layer, tensor):
        before = self.previous.get((what, layer))
        self.previous[what, layer] = tensor
        self.samples[f"{what} Norm", layer].append(tensor.norm().item())
        if before is None:
            self.samples[f"{what} Correlation", layer].append(0.0)
        elif before.shape == tensor.shape:
            lengths = before.norm() * tensor.norm()
            cosine = (before * tensor).sum() / lengths if lengths else lengths
            self.samples[f"{what} Correlation", layer].append(cosine.item())

    def tick(self, _):
        if "output gradients" not in self.case.records:
            for series in [series for series in self.samples if series[0].startswith("Output Gradient")]:
                del self.samples[series]
        self.counts.append({series: len(found) for series, found in self.samples.items() if found})
        for name, (layer, parameter) in self.watched.items():
            self.samples[f"{parameter} Norm".title(), layer].append(self.weights[name].norm().item())
        numbers = {}
        for (tag, layer), found in self.samples.items():
            if tag.endswith("_rate"):
                numbers["Output Activations", layer, tag] = sum(found) / len(found)
                continue
            numbers[tag, layer, "mean"] = sum(found) / len(found)
            if tag not in {f"{p} Norm".title() for _, p in self.watched.values()}:
                numbers[tag, layer, "min"], numbers[tag, layer, "max"] = min(found), max(found)
        self.ticks.append((self.steps, numbers | self.facts.tick()))
        self.samples.clear()


def look_at_router(samples, layer, module, args, output):
    scores, _ = output
    counts = torch.bincount(scores.argsort(1, descending=True)[:, :2].flatten(), minlength=scores.shape[1])
    shares = counts[counts > 0] / counts.sum()
    entropy = -(shares.double() * shares.double().log()).sum() / torch.tensor(scores.shape[1]).double().log()
    samples["Routing Entropy", layer].append(entropy.item())
    samples["Dropped Tokens", layer].append(0.0)


def look_at_batch_norm(samples, layer, module, args, output):
    """Afterwards: running statistics are a tenth this batch."""
    mean, variance = args[0].detach().mean(0), args[0].detach().var(0)
    was_mean, was_variance = (module.running_mean - 0.1 * mean) / 0.9, (module.running_var - 0.1 * variance) / 0.9
    ratio = (variance + module.eps) / (was_variance + module.eps)
    shift = (mean - was_mean).abs() / (was_variance + module.eps).sqrt()
    samples["BatchNorm Mean Shift", layer].append(shift.max().item())
    samples["BatchNorm Variance Ratio", layer].append(ratio[ratio.log().abs().argmax()].item())


LOOKS = {models.Router: look_at_router, nn.BatchNorm1d: look_at_batch_norm}


class Facts:
    """What is known of parameters and of parts of a step, beside lengths and directions."""

    def __init__(self):
        self.passes, self.parts, self.empties = 0, {}, defaultdict(list)
        self.last, self.moments = {}, {}
        self.samples, self.numbers = defaultdict(list), {}

    def backward(self, added, before):
        self.passes += 1
        for name, gradient in added.items():
            self.empties[name].append(name not in before)
            if name not in before:
                self.parts[name] = {}
            self.parts.setdefault(name, {})[self.passes] = gradient

    def step(self, event, gradients):
        if event.called:
            for name in event.owned | (event.orphans if event.optimizer == 0 else set()):
                self.look(event, name)
        if not event.skipped:
            self.noise([self.parts[name] for name in event.owned if name in self.parts])
            for name in event.owned & gradients.keys() if event.beta is not None else ():
                self.second_moment(name, gradients[name], event.beta)
        for name in event.owned if event.called else ():
            self.parts.pop(name, None)

    def look(self, event, name):
        empties, now, before = self.empties.pop(name, []), event.after[name], self.last.get(name)
        if empties:
            self.samples["Gradient Was Empty", name, "mean"].append(any(empties))
        if before is not None and not event.skipped:
            self.samples["Parameter Changed", name, "mean"].append(
                before.shape != now.shape or bool((now != before).any())
            )
        self.last[name] = now
        rate, group = event.rates.get(name, (None, -1))
        self.numbers["Parameter Group", name, "last"] = group
        self.numbers["Parameter Optimizer", name, "last"] = -1 if rate is None else event.optimizer
        self.numbers |= {} if rate is None else {("Parameter Learning Rate", name, "last"): rate}

    def noise(self, by_parameter):
        passes = {number for parts in by_parameter for number in parts}
        if len(passes) < 2:
            return
        zero = torch.zeros(())
        products = [
            [sum((p.get(i, zero) * p.get(j, zero)).sum() for p in by_parameter) for i in passes] for j in passes
        ]
        matrix, count = torch.tensor(products, dtype=torch.float64), len(passes)
        between = (matrix.sum() - matrix.trace()) / (count * (count - 1))  # of different parts
        self.samples["square"].append(between.item())
        self.samples["variance"].append((matrix.trace() / count - between).item() / count)

    def second_moment(self, name, gradient, beta):
        second, steps = self.moments.get(name, (0.0, 0))
        second, steps = beta * second + (1 - beta) * gradient.square(), steps + 1
        self.moments[name] = second, steps
        size = (gradient.square() / (second / (1 - beta**steps)).clamp(min=1e-16)).mean().sqrt()
        self.samples["Adam Gradient RMS", name, ""].append(size.item())

    def tick(self):
        squares, variances = self.samples.pop("square", []), self.samples.pop("variance", [])
        found = dict(self.numbers)
        if squares:
            found["Gradient Noise Scale", "Gradient Noise Scale", "noise_scale"] = (
                sum(variances) / sum(squares) if sum(squares) > 0 else math.inf
            )
        for (tag, name, line), samples in self.samples.items():
            mean = sum(samples) / len(samples)
            lines = {line: mean} if line else {"mean": mean, "min": min(samples), "max": max(samples)}
            found |= {(tag, name, line): number for line, number in lines.items()}
        self.samples, self.numbers = defaultdict(list), {}
        return found


def plain_copy(model):
    """The model in float64 without the options that change how, but not what, is computed."""
    twin = copy.deepcopy(model).double()
    for module in twin.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
        if hasattr(module, "checkpointing"):
            module.checkpointing = None
        if hasattr(module, "sparse"):
            module.sparse = False
    return twin


def watched_parameters(model, case):
    """Layer and name of each parameter to be recorded, tied ones once."""
    named = dict(model.named_parameters())
    if case.parameters == "all":
        return {path: (path, "parameter") for path in named}
    found = {}
    for layer, _ in layers_of(model):
        for parameter in case.parameters:
            path = f"{layer}.{parameter}" if layer else parameter
            path = case.trained_factors.get(path, path)
            if path in named:
                found[path] = layer, parameter
    return found


def layers_of(model):
    """All modules but what parametrisations are made of."""
    return [(name, module) for name, module in model.named_modules() if "parametrizations" not in name.split(".")]


def is_leaf(module):
    return len(layers_of(module)) == 1


def first(output):
    return output if isinstance(output, torch.Tensor) else output[0]
