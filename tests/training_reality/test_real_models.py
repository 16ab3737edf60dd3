"""All lenses on models of other people: they attach, train, tick, and show finite numbers under known names."""

import copy
import math
import warnings
from inspect import signature

import pytest
import torch

from monitorch import MonitorchWarning, PyTorchInspector, lens
from tests.training_reality.real_models import MODELS

STEPS = 10
WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def every_lens(model, optimizer):
    """One of each kind, on all parameters by whatever name."""
    *_, last = paths = [name for name, _ in model.named_parameters()]
    names = sorted({path.rpartition(".")[2] for path in paths})
    of_optimizer = ("ParameterFacts", "ParameterUpdateGeometry", "SignalToNoise", "UpdateRatio")
    special = {"Attribute": [last], **{name: [optimizer] for name in of_optimizer}}
    kinds = [name for name in lens.__all__ if name not in ("AbstractLens", "TargetStatistics")]  # they have no loss_fn
    chosen = [name for name in kinds if "parameters" in signature(getattr(lens, name)).parameters]
    options = {name: {"parameters": names} for name in chosen}
    return [getattr(lens, name)(*special.get(name, ()), **options.get(name, {})) for name in kinds]


def step(model, optimizer, batch):
    optimizer.zero_grad()
    output = model(**batch)
    output["loss"].backward()
    optimizer.step()


class Run:
    """Ten steps under watch; the last one is a tick of its own, and own hooks measure some layers in it."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model, batch = make()
        self.model.train()
        bare = copy.deepcopy(self.model)
        state = torch.get_rng_state()
        optimizer, bare_optimizer = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (self.model, bare))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", MonitorchWarning)
            options = {"module": self.model, "optimizer": optimizer, "visualizer": "dummy"}
            self.inspector = PyTorchInspector(every_lens(self.model, optimizer), **options)
            for _ in range(STEPS - 1):
                step(self.model, optimizer, batch)
            self.inspector.tick_epoch()
            self.first = self.inspector.records()
            self.own = OwnHooks(self.model)
            before = {name: p.detach().double().clone() for name, p in self.model.named_parameters()}
            step(self.model, optimizer, batch)
            self.own.remove()
            self.inspector.tick_epoch()
        self.told = [warning for warning in told if issubclass(warning.category, MonitorchWarning)]
        self.last = self.inspector.records()
        after = {name: p.detach().double() for name, p in self.model.named_parameters()}
        self.updates = {name: (after[name] - before[name]).norm().item() for name in after}
        self.watched_state = torch.get_rng_state()
        torch.set_rng_state(state)
        for _ in range(STEPS):
            step(bare, bare_optimizer, batch)
        self.bare, self.bare_state = bare, torch.get_rng_state()

    def shown(self, tag):
        """The mean of each layer in the last step."""
        return {r.layer: r.value for r in self.last if r.tag == tag and r.statistic == "mean"}

    def shown_of_parameters(self, what):
        """The same for all parameters, by path."""
        names = {name.rpartition(".")[2] for name, _ in self.model.named_parameters()}
        found = {parameter: self.shown(f"{parameter} {what}".title()) for parameter in names}
        return {f"{layer}.{parameter}": value for parameter in names for layer, value in found[parameter].items()}


class OwnHooks:
    """Norms of outputs and of their gradients in float64, layer by layer, for layers that are called once in a step."""

    def __init__(self, model):
        self.outputs, self.gradients, self.calls = {}, {}, {}
        leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
        self._handles = [
            module.register_forward_hook(lambda m, _, out, at=name: self._take(at, out)) for name, module in leaves
        ]

    def _take(self, layer, output):
        output = output[0] if isinstance(output, tuple) else output
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return
        self.calls[layer] = self.calls.get(layer, 0) + 1
        self.outputs[layer] = output.detach().double().reshape(len(output), -1).norm(dim=1).mean().item()
        if output.requires_grad:
            output.register_hook(lambda g: self.gradients.__setitem__(layer, g.detach().double().norm().item()))

    def of_single_calls(self, numbers):
        return {layer: number for layer, number in numbers.items() if self.calls[layer] == 1}

    def remove(self):
        for handle in self._handles:
            handle.remove()


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def run(request):
    made = Run(request.param)
    yield made
    made.inspector.detach()


def test_every_lens_shows_finite_numbers_in_every_tick(run):
    for records in (run.first, run.last):
        shown = {record.lens.split(" of ")[0] for record in records}
        silent = {type(one).__name__ for one in run.inspector.lenses} - shown
        assert silent - {"ActivationHealth", "Attention"} <= {
            type(one).__name__ for one in run.inspector.lenses if not one._layers
        }
        assert [r for r in records if r.nonfinite or not math.isfinite(r.value)] == []
        assert {record.step for record in run.first} == {STEPS - 1}
        assert {record.step for record in run.last} == {STEPS}


def test_there_are_few_warnings_and_each_has_a_cure(run):
    assert len(run.told) <= 3
    for warning in run.told:
        assert "; " in str(warning.message), warning.message


def test_numbers_are_those_of_own_hooks(run):
    outputs, gradients = run.own.of_single_calls(run.own.outputs), run.own.of_single_calls(run.own.gradients)
    shown_outputs, shown_gradients = run.shown("Output Norm"), run.shown("Output Gradient Norm")
    common = shown_gradients.keys() & gradients.keys()
    assert len(common) >= 2
    for shown, own in ((shown_outputs, outputs), (shown_gradients, gradients)):
        wanted = {layer: number for layer, number in own.items() if layer in shown}
        assert {layer: shown[layer] for layer in wanted} == pytest.approx(wanted, rel=1e-5, abs=1e-9)


def test_parameters_gradients_and_updates_are_right(run):
    named = dict(run.model.named_parameters())
    gradients = {name: p.grad.double().norm().item() for name, p in named.items() if p.grad is not None}
    norms = {name: p.detach().double().norm().item() for name, p in named.items()}
    for what, own in (("Norm", norms), ("Gradient Norm", gradients), ("Update Norm", run.updates)):
        assert run.shown_of_parameters(what) == pytest.approx(own, rel=1e-4, abs=1e-9)


def test_layers_have_the_names_of_the_model(run):
    names = {name for name, _ in run.model.named_modules()}
    assert set(run.inspector.layers) <= names
    assert not [name for name in run.inspector.layers if WRAPPERS & set(name.split("."))]


def test_training_does_not_notice(run):
    assert torch.equal(run.watched_state, run.bare_state)
    for (name, mine), other in zip(run.model.named_parameters(), run.bare.parameters(), strict=True):
        assert torch.equal(mine, other), name
