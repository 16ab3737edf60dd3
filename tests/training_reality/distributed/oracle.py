"""The same training in one process and in float64, on the batches of all ranks at once; nothing of the library."""

import copy
from collections import defaultdict

import numpy as np
import torch

from tests.training_reality.distributed.training import DETOUR_STEP, RATE, STEPS, TICKS, Loss, batch, new_model

LEAVES = ("norm", "columns", "act", "rows", "extra", "last")


class Whole:
    """Trains on the mean over ranks of each rank's loss, which is what all layouts optimise.

    Args:
        ranks: how many data-parallel ranks there are.
        variant: how to train.
        detour: whether one rank uses a layer that the others skip.
        sees_parts: whether each process sees the gradient of its own batch.
        sees_growth: whether a process sees when backward adds to a gradient.
    """

    def __init__(self, ranks, variant, *, detour, sees_parts, sees_growth):
        self.ranks, self.detour = ranks, detour
        self.sees_parts, self.sees_growth = sees_parts, sees_growth
        self.dtype, self.micro_batches = variant.dtype, variant.micro_batches
        self.clip_to, self.gradient = variant.clip, variant.gradient
        self.model, self.loss = new_model(self.dtype).double(), Loss()
        self.samples, self.previous, self.ticks = defaultdict(list), {}, []
        self.routed = []
        self.facts, self.last, self.parts = defaultdict(list), {}, []

    def run(self):
        for step in range(STEPS):
            self.step(step)
            if (step + 1) % (STEPS // TICKS) == 0:
                self.tick()
        return self.ticks

    def step(self, step):
        before = copy.deepcopy(self.model.state_dict())
        self.model.zero_grad()
        self.parts = []
        losses = [self.backward(step, part) for part in range(self.micro_batches)]
        self.samples["Loss", "Loss", "train_loss"].append(np.mean(losses))
        if self.gradient == "before_clip":
            self.gradients()
            self.clip()
        else:
            self.clip()
            self.gradients()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
        self.look()
        for name, parameter in self.model.named_parameters():
            self.geometry(f"{kind(name)} Update", layer(name), parameter.detach() - before[name])
            weight = np.linalg.norm(before[name].numpy())
            if weight:
                ratio = np.linalg.norm((parameter.detach() - before[name]).numpy()) / weight
                self.samples[f"{kind(name)} Update Ratio", layer(name), ""].append(ratio)

    def look(self):
        """What there is beside lengths and directions."""
        count = len(self.parts)
        if self.sees_parts and count > 1:
            products = np.array(self.parts) @ np.array(self.parts).T
            between = (products.sum() - products.trace()) / (count * (count - 1))  # of different parts
            self.facts["square"].append(between)
            self.facts["variance"].append((products.trace() / count - between) / count)
        for name, parameter in self.model.named_parameters():
            now = parameter.detach().numpy().copy()
            if parameter.grad is not None and self.sees_growth:
                self.facts["Gradient Was Empty", name, "mean"].append(1.0)
            if name in self.last:
                self.facts["Parameter Changed", name, "mean"].append(float(np.any(now != self.last[name])))
            self.last[name] = now
            for tag, number in (("Optimizer", 0), ("Group", 0), ("Learning Rate", RATE)):
                self.facts[f"Parameter {tag}", name, "last"].append(number)

    def clip(self):
        if self.clip_to is not None:
            there = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            length = np.sqrt(sum(np.square(gradient.numpy()).sum() for gradient in there))
            for gradient in there:
                gradient *= min(1.0, self.clip_to / (length + 1e-6))

    def gradients(self):
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.geometry(f"{kind(name)} Gradient", layer(name), parameter.grad.clone())
                self.rates(
                    f"{kind(name)} Gradient Activation", layer(name), parameter.grad.reshape(len(parameter), -1).T
                )

    def backward(self, step, part):
        seen = {name: [] for name in LEAVES}
        handles = [
            getattr(self.model, name).register_forward_hook(lambda _m, _i, out, kept=kept: kept.append(out))
            for name, kept in seen.items()
        ]
        losses = []
        for rank in range(self.ranks):
            x, y = (whole.double() for whole in batch(step * self.micro_batches + part, rank, self.dtype))
            used = self.detour and step == DETOUR_STEP and rank == 0
            losses.append(self.loss(self.model(x, used), y))
        for own in losses if self.sees_parts else ():
            slopes = torch.autograd.grad(own, [*self.model.parameters()], retain_graph=True, materialize_grads=True)
            self.parts.append(np.concatenate([slope.numpy().ravel() for slope in slopes]))
        loss = torch.stack(losses).mean()
        outputs = [out for name in LEAVES for out in seen[name]]
        found = iter(torch.autograd.grad(loss, outputs, retain_graph=True))
        loss.backward()
        for name in LEAVES:
            if seen[name]:
                gradient = [next(found) for _ in seen[name]]
                self.output(name, [out.detach() for out in seen[name]], gradient)
        for handle in handles:
            handle.remove()
        return loss.item()

    def output(self, name, outputs, gradients):
        norms = np.concatenate([out.flatten(1).norm(dim=1).numpy() for out in outputs])
        self.samples["Output Norm", name, ""].append(norms.mean())
        if name == "last":  # as if it were a router
            self.routed += [np.bincount(out.argmax(-1).flatten(), minlength=out.shape[-1]) for out in outputs]
        if name == "act":
            whole = torch.cat(outputs).flatten(0, 1)
            self.samples["Output Activations", name, "activation_rate"].append((whole != 0).double().mean().item())
            dead = [(out.flatten(0, 1) == 0).all(dim=0).double().mean().item() for out in outputs]
            self.samples["Output Activations", name, "death_rate"].append(np.mean(dead))
        else:
            shape = [out.shape for out in outputs]
            self.geometry("Output Gradient", name, torch.cat([g.flatten() for g in gradients]), shape)

    def geometry(self, tag, layer, tensor, shape=None):
        flat, known = tensor.flatten().numpy(), self.previous.get((tag, layer))
        self.previous[tag, layer] = flat.copy(), shape
        self.samples[f"{tag} Norm", layer, ""].append(np.linalg.norm(flat))
        if known is None:
            self.samples[f"{tag} Correlation", layer, ""].append(0.0)
        elif known[1] == shape:
            product = np.linalg.norm(flat) * np.linalg.norm(known[0])
            self.samples[f"{tag} Correlation", layer, ""].append(flat @ known[0] / product if product else 0.0)

    def rates(self, tag, layer, by_neuron):
        active = by_neuron.abs() > 1e-8
        self.samples[tag, layer, "activation_rate"].append(active.double().mean().item())
        self.samples[tag, layer, "death_rate"].append((~active.any(dim=0)).double().mean().item())

    def tick(self):
        for name, parameter in self.model.named_parameters():
            self.samples[f"{kind(name)} Norm", layer(name), "mean"].append(parameter.detach().norm().item())
        lines = {}
        for (tag, layer_name, statistic), samples in self.samples.items():
            if statistic == "":
                lines |= {(tag, layer_name, line): one for line, one in summary(samples).items()}
            elif statistic == "train_loss":
                lines |= {(tag, layer_name, f"train_loss {line}"): one for line, one in summary(samples).items()}
            else:
                lines[tag, layer_name, statistic] = np.mean(samples)
        squares, variances = self.facts.pop("square", []), self.facts.pop("variance", [])
        if squares:
            tag = "Gradient Noise Scale"
            lines[tag, tag, "noise_scale"] = np.sum(variances) / np.sum(squares) if np.sum(squares) > 0 else np.inf
        lines |= {key: np.mean(samples) for key, samples in self.facts.items()}
        self.ticks.append(lines | routing("last", self.routed))
        self.samples.clear()
        self.facts.clear()
        self.routed.clear()


def summary(samples):
    return {
        "mean": np.mean(samples),
        "std": np.std(samples),
        "min": np.min(samples),
        "max": np.max(samples),
        "median": np.median(samples),
    }


def routing(layer, counts):
    """What is shown of a router, from how often each expert was chosen in each pass of each process."""
    shares = [found[found > 0] / found.sum() for found in counts]
    entropies = summary([-np.sum(share * np.log(share)) / np.log(len(counts[0])) for share in shares])
    total = np.sum(counts, axis=0) / np.sum(counts)
    return {
        **{("Routing Entropy", layer, line): entropies[line] for line in ("mean", "min", "max")},
        **{("Expert Shares", layer, f"expert {number}"): share for number, share in enumerate(total)},
        ("Expert Load", layer, "largest"): total.max() * len(total),
        ("Expert Load", layer, "smallest"): total.min() * len(total),
        ("Unused Experts", layer, "unused"): np.sum(total == 0),
    }


def kind(name):
    return name.rpartition(".")[2].title()


def layer(name):
    return name.rpartition(".")[0]
