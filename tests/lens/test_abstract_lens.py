"""A lens of one's own, written from the documented interface alone."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from monitorch.gatherer import FeedForwardGatherer
from monitorch.lens import AbstractLens
from monitorch.preprocessor import ExplicitCall, OutputNorm
from monitorch.visualizer import TagAttributes, TagType

ABSTRACT = {
    "detach_from_module",
    "finalize_epoch",
    "introduce_tags",
    "register_leaf_module",
    "reset_epoch",
    "vizualize",
}


class LongestOutput(AbstractLens):
    """The largest mean norm of a layer's output in a tick."""

    def __init__(self):
        self.preprocessor = OutputNorm(normalize=False, inplace=True, record_eval=True, evaluation_from_grad=False)
        self.gatherers, self.found = [], OrderedDict()

    def register_leaf_module(self, module, module_name, inspector_state):
        self.gatherers.append(FeedForwardGatherer(module, [self.preprocessor], module_name, inspector_state))

    def detach_from_module(self):
        while self.gatherers:
            self.gatherers.pop().detach()

    def introduce_tags(self, visualizer):
        visualizer.register_tags("Longest", TagAttributes(False, True, True, TagType.NUMERICAL))

    def finalize_epoch(self):
        self.found = OrderedDict((name, {"longest": kept.max_}) for name, kept in self.preprocessor.value.items())

    def vizualize(self, visualizer, epoch):
        visualizer.plot_numerical_values(epoch, "Longest", self.found, None)

    def reset_epoch(self):
        self.preprocessor.reset()


class Meets(LongestOutput):
    """Also takes the two optional calls."""

    def register_non_leaf_module(self, module, module_name, inspector_state):
        self.containers = [*getattr(self, "containers", []), module_name]

    def register_foreign_preprocessor(self, ext_ppr, inspector_state):
        self.foreign = ext_ppr


def test_exactly_the_documented_methods_are_abstract():
    assert AbstractLens.__abstractmethods__ == ABSTRACT


@pytest.mark.parametrize("missing", sorted(ABSTRACT))
def test_lens_that_lacks_one_of_them_cannot_be_made(missing):
    incomplete = type("Incomplete", (LongestOutput,), {missing: getattr(AbstractLens, missing)})
    with pytest.raises(TypeError, match=missing):
        incomplete()


def test_own_lens_runs_under_an_inspector(watch, shown, hooks_on, close):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    inspector = watch(model, LongestOutput())
    batches = [torch.randn(5, 3) for _ in range(3)]
    outputs = [model[0](batch).detach().double().numpy() for batch in batches]
    for _ in inspector.range(2):
        for batch in batches:
            model(batch)
    assert shown.tags == {"Longest": TagAttributes(False, True, True, TagType.NUMERICAL, None)}
    assert [call[:2] for call in shown.calls] == [(1, "Longest"), (2, "Longest")]
    longest = max(((output**2).sum(1) ** 0.5).mean() for output in outputs)
    assert shown.values("Longest")["0"]["longest"] == close(longest)
    assert list(shown.values("Longest")) == ["0", "1"]
    inspector.detach()
    assert not hooks_on(model)


def test_own_lens_may_meet_containers_and_pushed_numbers(watch):
    own = Meets()
    inspector = watch(nn.Sequential(nn.Sequential(nn.Linear(1, 1))), own)
    inspector.push_metric("accuracy", 0.5)
    assert own.containers == ["", "0"]
    assert isinstance(own.foreign, ExplicitCall)
    assert own.foreign.value["accuracy"].mean == 0.5
