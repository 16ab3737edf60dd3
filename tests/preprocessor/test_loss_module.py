from types import SimpleNamespace

import pytest
import torch
from torch import nn

from monitorch.numerical import RunningMeanVar
from monitorch.preprocessor import LossModule


@pytest.fixture
def losses():
    def build(inplace=False, evaluation_from_grad=True, **options):
        preprocessor = LossModule(inplace, evaluation_from_grad, **options)
        preprocessor.set_loss_strs("train", "val")
        return preprocessor

    return build


def hand_over(preprocessor, output, module=None):
    preprocessor.process_fw("ignored", module or nn.MSELoss(), None, output)


@pytest.mark.parametrize("inplace", [True, False])
def test_both_names_exist_and_are_empty_from_the_start(losses, inplace):
    empty = RunningMeanVar() if inplace else []
    preprocessor = losses(inplace)
    assert preprocessor.value == {"train": empty, "val": empty}
    hand_over(preprocessor, torch.tensor(1.0))
    preprocessor.reset()
    assert preprocessor.value == {"train": empty, "val": empty}


@pytest.mark.parametrize("evaluation_from_grad", [None, True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_training_is_told_from_evaluation(losses, evaluation_from_grad, training, grad):
    preprocessor = losses(evaluation_from_grad=evaluation_from_grad)
    with torch.set_grad_enabled(grad):
        hand_over(preprocessor, torch.tensor(2.5), nn.MSELoss().train(training))
    trains = {None: training and grad, True: grad, False: training}[evaluation_from_grad]
    assert preprocessor.value == {"train": [2.5] * trains, "val": [2.5] * (not trains)}


def test_the_loss_of_a_real_step(losses):
    preprocessor, loss_fn = losses(inplace=True), nn.MSELoss()
    for step in range(3):
        prediction = torch.full((4,), float(step), requires_grad=True)
        loss = loss_fn(prediction, torch.zeros(4))
        hand_over(preprocessor, loss)
        loss.backward()
    assert preprocessor.value["train"].mean == pytest.approx((0 + 1 + 4) / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_loss_that_is_changed_in_place_afterwards_keeps_its_value(losses, dtype):
    preprocessor, loss = losses(), torch.tensor(2.5, dtype=dtype)
    hand_over(preprocessor, loss)
    loss.mul_(100)
    assert preprocessor.value["train"] == [2.5]


@pytest.mark.parametrize(
    "output",
    [
        torch.tensor(4.0),
        torch.tensor([4.0]),
        {"loss": torch.tensor(4.0), "logits": torch.zeros(2)},
        SimpleNamespace(loss=torch.tensor([[4.0]]), logits=torch.zeros(2)),
        torch.tensor(4.0, dtype=torch.bfloat16),
    ],
)
def test_a_loss_is_found_in_the_output(losses, output):
    preprocessor = losses()
    hand_over(preprocessor, output)
    assert preprocessor.value["train"] == [4.0]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (torch.zeros(3), r"not \(3,\); reduce it, or use push_loss"),
        (torch.zeros(0), r"not \(0,\)"),
        ((torch.tensor(1.0),), "not tuple"),
        ({"logits": torch.zeros(2)}, "not dict"),
        ({"loss": torch.zeros(2)}, r"not \(2,\)"),
        (1.0, "not float"),
    ],
)
def test_what_is_no_single_number_is_refused(losses, output, text):
    with pytest.raises(AttributeError, match=text):
        hand_over(losses(), output)


def test_losses_need_names_first():
    preprocessor = LossModule(inplace=True, evaluation_from_grad=True)
    assert preprocessor.value == {}
    with pytest.raises(KeyError, match="set_loss_strs"):
        hand_over(preprocessor, torch.tensor(1.0))
    preprocessor.reset()
    assert preprocessor.value == {}


@pytest.mark.parametrize("output", [torch.zeros(3), (torch.zeros(1),), {"logits": torch.zeros(2)}, {"loss": None}])
def test_outputs_without_the_field_may_be_passed_over(losses, output):
    preprocessor = losses(field_only=True)
    hand_over(preprocessor, output)
    hand_over(preprocessor, {"loss": torch.tensor(1.0)})
    assert preprocessor.value["train"] == [1.0]
