from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from monitorch.engine.passes import is_training_pass
from monitorch.errors import SkippedSample
from monitorch.preprocessor import OutputActivation, OutputNorm
from tests.engine.test_tensors import NOTHING

Pair = namedtuple("Pair", ["hidden", "logits"])
IDS, ONE, TWO = torch.tensor([[1, 2]]), torch.ones(2, 1), torch.full((2, 1), 2.0)


@dataclass
class Output:
    ids: Tensor
    hidden: Tensor
    logits: Tensor


@pytest.fixture(params=["OutputNorm", "OutputActivation"])
def preprocessor(request):
    def build(record_eval=False, evaluation_from_grad=False, output_index=None):
        if request.param == "OutputNorm":
            return OutputNorm(False, False, record_eval, evaluation_from_grad, output_index=output_index)
        return OutputActivation(False, False, record_eval, evaluation_from_grad, eps=1.5, output_index=output_index)

    return build


# an output and an index -> the tensor that is meant; every kind of output is in the tests of pick_tensor
FOUND = {
    "tensor": (ONE, None, ONE),
    "tuple, integers first": ((IDS, None, TWO), None, TWO),
    "tuple, last": ((ONE, TWO), -1, TWO),
    "dict, name": ({"hidden": ONE, "logits": TWO}, "logits", TWO),
    "named tuple, name": (Pair(ONE, TWO), "logits", TWO),
    "dataclass, name": (Output(IDS, ONE, TWO), "logits", TWO),
}


@pytest.mark.parametrize(("output", "index", "meant"), FOUND.values(), ids=FOUND)
def test_the_tensor_that_is_meant_is_measured(preprocessor, layer, output, index, meant):
    both = preprocessor(output_index=index), preprocessor()
    both[0].process_fw("x", layer, None, output)
    both[1].process_fw("x", layer, None, meant)
    assert both[0].value == both[1].value


@pytest.mark.parametrize(
    ("output", "index", "error", "text"),
    [
        ((ONE,), 3, IndexError, "range"),
        ({"hidden": ONE}, "logits", KeyError, "logits"),
        (Pair(ONE, TWO), "loss", AttributeError, "loss"),
        (Output(IDS, ONE, TWO), "loss", AttributeError, "loss"),
    ],
)
def test_a_part_that_does_not_exist_is_named(preprocessor, layer, output, index, error, text):
    with pytest.raises(error, match=text):
        preprocessor(output_index=index).process_fw("x", layer, None, output)


@pytest.mark.parametrize(("output", "text"), NOTHING.values(), ids=NOTHING)
def test_outputs_with_nothing_to_measure_are_skipped(preprocessor, layer, output, text):
    measuring = preprocessor()
    with pytest.raises(SkippedSample, match=text):
        measuring.process_fw("x", layer, None, output)
    assert measuring.value == {}


@pytest.mark.parametrize("evaluation_from_grad", [None, True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("record_eval", [True, False])
def test_which_passes_are_recorded(preprocessor, evaluation_from_grad, training, grad, record_eval):
    module, measuring = nn.ReLU().train(training), preprocessor(record_eval, evaluation_from_grad)
    trains = {None: training and grad, True: grad, False: training}[evaluation_from_grad]
    with torch.set_grad_enabled(grad):
        assert is_training_pass(module, evaluation_from_grad) == trains
        measuring.process_fw("x", module, None, ONE)
    assert list(measuring.value) == ["x"] * (trains or record_eval)
