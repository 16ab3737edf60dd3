import pytest
import torch
from torch import nn

from monitorch.preprocessor import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractPreprocessor,
    AbstractTensorPreprocessor,
)


class Seen:
    """What a user writes who has only read what the bases ask for."""

    def __init__(self):
        self.seen = {}

    @property
    def value(self):
        return self.seen


class Bare(Seen, AbstractPreprocessor):
    pass


class OutputShape(Seen, AbstractForwardPreprocessor):
    def process_fw(self, name, module, layer_input, layer_output):
        self.seen[name] = tuple(layer_output.shape)


class GradientShape(Seen, AbstractBackwardPreprocessor):
    def process_bw(self, name, module, grad_input, grad_output):
        self.seen[name] = tuple(grad_output[0].shape)


class ModuleType(Seen, AbstractModulePreprocessor):
    def process_module(self, name, module):
        self.seen[name] = tuple(module.weight.shape)


class TensorShape(Seen, AbstractTensorPreprocessor):
    def process_tensor(self, name, tensor):
        self.seen[name] = tuple(tensor.shape)


WRITTEN = {
    OutputShape: lambda preprocessor: preprocessor.process_fw("x", nn.ReLU(), None, torch.ones(2, 3)),
    GradientShape: lambda preprocessor: preprocessor.process_bw("x", nn.ReLU(), (None,), (torch.ones(2, 3),)),
    ModuleType: lambda preprocessor: preprocessor.process_module("x", nn.Linear(3, 2)),
    TensorShape: lambda preprocessor: preprocessor.process_tensor("x", torch.ones(2, 3)),
}


def live_a_life(preprocessor):
    preprocessor.start_sync()
    preprocessor.start_sync(dst_rank=1)
    preprocessor.finish_sync()
    preprocessor.interrupt("x")
    preprocessor.reset()
    preprocessor.clear()


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_verb_and_a_value_are_enough(kind):
    preprocessor = kind()
    WRITTEN[kind](preprocessor)
    live_a_life(preprocessor)
    assert preprocessor.value == {"x": (2, 3)}


def test_a_value_is_enough_for_the_common_base():
    preprocessor = Bare()
    live_a_life(preprocessor)
    assert preprocessor.value == {}


def test_tensors_about_to_change_may_be_ignored():
    preprocessor = TensorShape()
    preprocessor.remember("x", torch.ones(1))
    assert preprocessor.value == {}


def test_clearing_resets_unless_more_is_kept():
    class Counting(Bare):
        resets = 0

        def reset(self):
            self.resets += 1

    preprocessor = Counting()
    preprocessor.clear()
    assert preprocessor.resets == 1


def test_backward_preprocessors_get_both_gradients_by_default():
    assert GradientShape().needs_grad_input


@pytest.mark.parametrize(
    ("base", "missing"),
    [
        (AbstractPreprocessor, "value"),
        (AbstractForwardPreprocessor, "process_fw"),
        (AbstractBackwardPreprocessor, "process_bw"),
        (AbstractModulePreprocessor, "process_module"),
        (AbstractTensorPreprocessor, "process_tensor"),
    ],
)
def test_what_is_missing_is_named(base, missing):
    with pytest.raises(TypeError, match=missing):
        base()
