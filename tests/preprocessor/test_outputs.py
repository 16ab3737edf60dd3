"""Which outputs are measured, and their norms."""

import math
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
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


SHAPES = [(4, 3), (1, 5), (4, 3, 5, 2), (2, 6, 3), (7,), ()]
PRECISION = {torch.float16: 1e-6, torch.bfloat16: 1e-6, torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.fixture
def norms():
    return lambda normalize=False, **options: OutputNorm(normalize, False, False, False, **options)


def oracle(output, normalize):
    numbers = output.detach().to(torch.complex128 if output.is_complex() else torch.float64).numpy()
    samples = numbers.reshape(len(numbers), -1) if numbers.ndim > 1 else numbers.reshape(1, -1)
    norm = np.linalg.norm(samples, axis=1).mean()
    return norm / math.sqrt(samples.shape[1]) if normalize else norm


def measured(preprocessor, layer, *outputs):
    for output in outputs:
        preprocessor.process_fw("x", layer, None, output)
    return preprocessor.value["x"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalize", [True, False])
def test_mean_norm_of_the_samples(norms, layer, shape, normalize, dtype):
    outputs = [torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(3)]
    expected = [oracle(output, normalize) for output in outputs]
    samples = measured(norms(normalize), layer, *outputs)
    np.testing.assert_allclose(samples, expected, rtol=PRECISION[dtype])
    assert [type(sample) for sample in samples] == [float] * 3


def test_where_the_channels_are_does_not_matter(norms, layer):
    output = torch.randn(2, 5, 3)
    assert measured(norms(channel_last=True), layer, output) == measured(norms(), layer, output)


def test_large_half_precision_outputs_do_not_overflow(norms, layer):
    output = torch.full((2, 1000), 300.0, dtype=torch.float16)
    assert measured(norms(), layer, output) == pytest.approx([300 * math.sqrt(1000)])


@pytest.mark.parametrize("normalize", [True, False])
def test_complex_outputs(norms, layer, normalize):
    output = torch.randn(4, 3, dtype=torch.complex64)
    assert measured(norms(normalize), layer, output) == pytest.approx([oracle(output, normalize)], rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_output_makes_one_sample_bad(layer, bad):
    preprocessor = OutputNorm(False, inplace=True, record_eval=False, evaluation_from_grad=False)
    moments = measured(preprocessor, layer, torch.ones(2, 4), torch.tensor([[bad, 1.0], [1.0, 1.0]]))
    assert (moments.mean, moments.count, moments.nonfinite) == (2.0, 1, 1)


def test_outputs_that_need_gradients_are_not_touched(norms, layer):
    hidden = torch.randn(3, 2, requires_grad=True)
    output = layer(hidden)
    before = output.detach().clone()
    assert measured(norms(), layer, output) == pytest.approx([oracle(output, False)], rel=1e-6)
    assert torch.equal(output, before)
    output.sum().backward()
    assert hidden.grad is not None


def test_noncontiguous_outputs(norms, layer):
    output = torch.randn(5, 4, 3).permute(2, 0, 1)
    assert measured(norms(), layer, output) == pytest.approx([oracle(output.contiguous(), False)], rel=1e-6)
