"""A visualizer that keeps what it is handed, a short training, and a tape of what a bare model really does in it."""

import copy
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.inspector import PyTorchInspector
from monitorch.visualizer import AbstractVisualizer


class Shown(AbstractVisualizer):
    """Keeps every call; ranges have no default, so a lens must always hand over four arguments."""

    def __init__(self):
        self.tags, self.calls = {}, []

    def register_tags(self, main_tag, tag_attr, /):
        self.tags[main_tag] = tag_attr

    def plot_numerical_values(self, epoch, main_tag, values_dict, ranges_dict, /):
        self.calls.append((epoch, main_tag, copy.deepcopy(values_dict), copy.deepcopy(ranges_dict)))

    def plot_probabilities(self, epoch, main_tag, values_dict, /):
        self.calls.append((epoch, main_tag, copy.deepcopy(values_dict), None))

    plot_relations = plot_probabilities

    def values(self, tag):
        """What the latest tick showed under ``tag``."""
        return [values for _, called, values, _ in self.calls if called == tag][-1]

    def ranges(self, tag):
        return [ranges for _, called, _, ranges in self.calls if called == tag][-1]


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def watch(shown):
    """Build an inspector that shows its lenses in ``shown`` and hides no error; it lives as long as the test."""
    kept = []

    def build(model, *lenses, **options):
        kept.append(PyTorchInspector(lenses, module=model, **{"visualizer": shown, "on_error": "raise", **options}))
        return kept[-1]

    return build


@pytest.fixture
def make_batches():
    """Build pairs of inputs and targets, the same ones every time."""

    def build(sizes=(5, 5, 5), features=4, outputs=2):
        stream = torch.Generator().manual_seed(7)
        shapes = [((size, features), (size, outputs)) for size in sizes]
        return [tuple(torch.randn(shape, generator=stream) for shape in pair) for pair in shapes]

    return build


@pytest.fixture
def train():
    """Train for one epoch; returns the losses."""

    def run(model, optimizer, batches, loss_fn=None, tape=None, after_step=lambda loss: None):
        losses = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            output = model(inputs)
            loss = (loss_fn or nn.functional.mse_loss)(output, targets)
            loss.backward()
            if tape is None:
                optimizer.step()
            else:
                tape.data.append(tuple(map(as_array, (inputs, output, targets))))
                tape.step(optimizer, loss)
            losses.append(loss.detach())
            after_step(loss)
        return losses

    return run


def as_array(tensor):
    return tensor.detach().double().numpy().copy()


class Tape:
    """Raw tensors of a bare model's training passes as float64 arrays, by layer; those of parameters by name first.

    Output gradients are those of zeros added to each output: no hook on a gradient is involved. The first floating
    tensor of a tuple or dictionary is the output.
    """

    def __init__(self, model):
        self.model, self._probes, self._ticked = model, [], {}
        self.outputs, self.output_gradients = defaultdict(list), defaultdict(list)
        self.gradients, self.updates = defaultdict(lambda: defaultdict(list)), defaultdict(lambda: defaultdict(list))
        self.weights = defaultdict(lambda: defaultdict(list))  # before each step
        self.losses = {"train_loss": [], "val_loss": []}
        self.data = []  # input of the model, output and target of each step
        for name, module in model.named_modules():
            if not list(module.children()):
                module.register_forward_hook(lambda module, _, output, name=name: self._note(name, module, output))

    def tick(self):
        """Begin a new tick."""
        series = (self.outputs, self.output_gradients, *self.gradients.values(), *self.updates.values())
        series += (*self.weights.values(),)
        self._ticked = {id(arrays): len(arrays) for kept in series for arrays in kept.values()}
        self.losses = {"train_loss": [], "val_loss": []}
        self.data = []

    def new(self, kept):
        """Arrays since the tick in model order, with those before: ``{layer: [(before or None, now), ...]}``."""
        pairs = {layer: list(zip([None, *arrays], arrays, strict=False)) for layer, arrays in kept.items()}
        news = {name: pairs.get(name, [])[self._ticked.get(id(kept.get(name)), 0) :] for name in self._layers()}
        return {layer: found for layer, found in news.items() if found}

    def step(self, optimizer, loss):
        """Let the optimizer make its step; gradients are there."""
        for name, probe in reversed(self._probes):
            if probe.grad is not None:
                self.output_gradients[name].append(as_array(probe.grad))
        self._probes = []
        for layer, short, parameter in self._parameters():
            if parameter.grad is not None:
                self.gradients[short][layer].append(as_array(parameter.grad))
        before = {(layer, short): as_array(parameter) for layer, short, parameter in self._parameters()}
        optimizer.step()
        for layer, short, parameter in self._parameters():
            self.updates[short][layer].append(as_array(parameter) - before[layer, short])
            self.weights[short][layer].append(before[layer, short])
        self.losses["train_loss"].append(float(loss.detach()))

    def parameters(self, short):
        """The parameters of that name as they are now, by layer."""
        found = {layer: as_array(parameter) for layer, name, parameter in self._parameters() if name == short}
        return {layer: found[layer] for layer in self._layers() if layer in found}

    def _layers(self):
        return [name for name, _ in self.model.named_modules()]

    def _parameters(self):
        for name, parameter in self.model.named_parameters():
            layer, _, short = name.rpartition(".")
            yield layer, short, parameter

    def _note(self, name, module, output):
        if not (module.training and torch.is_grad_enabled()):
            return output
        if isinstance(output, dict):
            return dict(zip(output, self._note(name, module, tuple(output.values())), strict=True))
        if isinstance(output, tuple):
            index = next(index for index, part in enumerate(output) if part.is_floating_point())
            return (*output[:index], self._note(name, module, output[index]), *output[index + 1 :])
        self.outputs[name].append(as_array(output))
        probe = torch.zeros_like(output, requires_grad=output.requires_grad)
        self._probes.append((name, probe))
        return output + probe


@pytest.fixture
def record():
    """Make a copy of a model and the tape of it."""

    def build(model):
        bare = copy.deepcopy(model)
        return bare, Tape(bare)

    return build


@pytest.fixture
def hooks_on():
    """All hooks on modules, their parameters and optimizers."""

    def collect(*things):
        names = ("_backward_hooks", "_post_accumulate_grad_hooks")
        modules = [module for thing in things if isinstance(thing, nn.Module) for module in thing.modules()]
        tensors = [tensor for module in modules for tensor in module.parameters(recurse=False)]
        kept = [value for thing in (*modules, *things) for name, value in vars(thing).items() if "_hooks" in name]
        kept += [getattr(tensor, name) for tensor in tensors for name in names]
        return [hook for hooks in kept for hook in hooks or ()]

    return collect


@pytest.fixture
def tags_of(shown):
    """What a lens announces: (tag, logy, big, annotate, type, ylim) in order."""

    def collect(lens):
        lens.introduce_tags(shown)
        return [(tag, a.logy, a.big_plot, a.annotate, a.type.name, a.ylim) for tag, a in shown.tags.items()]

    return collect


@pytest.fixture
def close():
    """Compare with float64 numbers: what differs is the rounding of single precision tensors."""
    return lambda expected: pytest.approx(np.asarray(expected).tolist(), rel=2e-6, abs=1e-7, nan_ok=True)


class Net(nn.Module):
    """Three linear layers and an activation, called in the ways that models are called."""

    def __init__(self, middle=None, act=None, **extra):
        super().__init__()
        self.last = nn.Linear(6, 2)  # defined first, run last
        self.first, self.act, self.middle = nn.Linear(4, 6), act or nn.ReLU(), middle or nn.Linear(6, 6)
        for name, module in extra.items():
            setattr(self, name, module)

    def forward(self, inputs):
        hidden = self.middle(input=self.act(input=self.first(input=inputs)))  # keyword arguments only
        hidden = hidden["hidden"] if isinstance(hidden, dict) else hidden[1] if isinstance(hidden, tuple) else hidden
        return self.last(hidden)


class TupleLinear(nn.Linear):
    def forward(self, input):
        return input.argmax(1), super().forward(input)


class DictLinear(nn.Linear):
    def forward(self, input):
        return {"ids": input.argmax(1), "hidden": super().forward(input)}


class TwiceLinear(Net):
    def forward(self, inputs):
        return self.last(self.middle(self.middle(self.act(self.first(inputs)))))


SITUATIONS = {
    "keyword calls, run in another order": (Net, (5, 5, 5)),
    "tuple output": (lambda: Net(TupleLinear(6, 6)), (5, 5, 5)),
    "dict output": (lambda: Net(DictLinear(6, 6)), (5, 5, 5)),
    "unused layers": (lambda: Net(spare=nn.Linear(3, 3), idle=nn.Tanh()), (5, 5, 5)),
    "short last batch": (Net, (5, 5, 2)),
    "last batch of one": (Net, (5, 5, 1)),
    "in-place activation": (lambda: Net(act=nn.ReLU(inplace=True)), (5, 5, 5)),
    "frozen middle": (lambda: Net(nn.Linear(6, 6).requires_grad_(False)), (5, 5, 5)),
    "frozen start": (lambda: Net(first=nn.Linear(4, 6).requires_grad_(False)), (5, 5, 5)),
    "layer without bias": (lambda: Net(nn.Linear(6, 6, bias=False)), (5, 5, 5)),
    "layer called twice a step": (TwiceLinear, (5, 5)),
    "dropout": (lambda: Net(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))), (5, 5)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
        ),
        (5, 5, 5),
    ),
}


@pytest.fixture(params=SITUATIONS)
def situation(request, make_batches):
    """A model and the batches it is trained on."""
    build, sizes = SITUATIONS[request.param]
    return build(), make_batches(sizes)


@pytest.fixture
def new_net():
    return Net


@pytest.fixture
def task():
    """A model with what trains it; the optimizer may hold further models, too."""

    def build(model, *more_models):
        parameters = [parameter for each in (model, *more_models) for parameter in each.parameters()]
        return SimpleNamespace(model=model, optimizer=torch.optim.SGD(parameters, lr=0.1), loss_fn=nn.MSELoss())

    return build


@pytest.fixture
def epoch(train):
    """One epoch of a task, then an evaluation pass in train mode and one in eval mode; returns training losses."""

    def run(task, batches, inspector=None, tape=None):
        push = (lambda loss: None) if inspector is None else lambda loss: inspector.push_metric("score", 2 * loss)
        losses = train(task.model, task.optimizer, batches, task.loss_fn, tape, push)
        for mode in (True, False):
            with torch.no_grad():
                loss = task.loss_fn(task.model.train(mode)(batches[0][0]), batches[0][1])
            if tape is not None:
                tape.losses["val_loss"].append(float(loss))
        task.model.train()
        return losses

    return run
