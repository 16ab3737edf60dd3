"""Losses where they are computed, and their gradients."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from monitorch.engine.ranks import merged
from monitorch.numerical import RunningMeanVar
from monitorch.numerical.series import Series
from monitorch.numerical.waiting import HostCopy
from monitorch.preprocessor import LossModule
from monitorch.preprocessor.loss_module import LossGradient, Slots, is_scale
from monitorch.preprocessor.run_numbers import MOST_OPEN, RECENT


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


def test_losses_that_come_while_processes_exchange_a_tick_are_kept_for_the_next(losses):
    preprocessor, loss_fn = losses(inplace=True), nn.MSELoss()
    preprocessor.gradient.is_looking = False

    def lose(step):
        loss = loss_fn(torch.full((2,), float(step), requires_grad=True), torch.zeros(2))
        assert preprocessor.take_quietly(loss_fn, loss, step)

    lose(1)
    kept = preprocessor.release()  # a tick begins
    lose(2)
    with preprocessor.showing(kept):  # in another thread, while training goes on
        preprocessor.merge_ranks(merged({0: preprocessor.payload()}))
    assert [number for _, number in preprocessor.recent("train")] == [1.0, 4.0]
    assert preprocessor.release().series.values()["train"].mean == 4.0


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


def seen(*factors):
    """What is found where losses are multiplied by these factors before backward."""
    gradient = LossGradient()
    for factor in factors:
        loss = torch.ones(3, requires_grad=True).square().mean()
        gradient.watch(loss)
        (loss * factor).backward()
    gradient.end_tick()
    return gradient.scale()


@pytest.mark.parametrize(
    ("factors", "scale"),
    [
        ([65536.0], 65536.0),
        ([2.0**10, 2.0**11], 2.0**11),  # it has grown
        ([2.0**16 / 8], 2.0**13),
        ([2.0**16 / 3], pytest.approx(2.0**16 / 3)),
        ([2.0**16 / 7, 2.0**15 / 7], pytest.approx(2.0**16 / 7)),
        ([2.0**24], 2.0**24),
        ([1.0], None),
        ([0.5], None),
        ([1 / 3], None),
        ([256.0], None),  # a batch size
        ([1000.0], None),  # a weight
        ([1e4], None),
        ([3000.0], None),
        ([65536.0, 1.0], None),
        ([float("inf")], None),
        ([float("nan")], None),
        ([float("inf"), 65536.0], 65536.0),
        ([-65536.0], None),
        ([0.0], None),
        ([], None),
    ],
)
def test_a_large_power_of_two_is_the_scale_of_a_scaler_also_divided_among_micro_batches(factors, scale):
    assert seen(*factors) == scale


def test_no_number_that_people_write_down_is_taken_for_a_scale():
    scales = [n for n in range(1, 100_001) if is_scale(n)]
    assert scales == [2**exponent for exponent in range(10, 17)]


def test_it_is_told_once_and_looked_for_until_something_was_seen():
    gradient = LossGradient()
    gradient.end_tick()  # an evaluation
    assert gradient.scale() is None
    loss = torch.ones(1, requires_grad=True).sum()
    gradient.watch(loss)
    (loss * 65536).backward()
    gradient.end_tick()
    HostCopy(gradient.pending()).deliver()
    gradient.finish()
    assert gradient.pending() == []
    assert [gradient.scale(), gradient.scale()] == [65536, None]
    later = torch.ones(1, requires_grad=True).sum()
    gradient.watch(later)
    assert later._backward_hooks is None


@pytest.mark.parametrize(
    "loss",
    [1.0, None, torch.ones(1), torch.ones(1, requires_grad=True), torch.ones(3, requires_grad=True) * 2],
    ids=["number", "none", "constant", "leaf", "several"],
)
def test_what_is_no_loss_with_a_gradient_is_left_alone(loss):
    LossGradient().watch(loss)
    assert not isinstance(loss, Tensor) or not loss._backward_hooks


def test_losses_inside_functional_transforms_are_left_alone():
    gradient = LossGradient()

    def loss_of(x):
        loss = x.square().sum()
        gradient.watch(loss)
        return loss * 65536

    torch.func.grad(loss_of)(torch.ones(3))
    gradient.end_tick()
    assert gradient.scale() is None


class Calls(TorchFunctionMode):
    """Notes which functions of torch are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_by_the_host_before_a_tick():
    gradient = LossGradient()
    with Calls() as calls:
        loss = torch.ones(1, requires_grad=True).sum()
        gradient.watch(loss)
        (loss * 65536).backward()
    assert not calls.names & {"cpu", "item", "tolist", "numpy", "__float__", "__bool__"}
    gradient.end_tick()
    HostCopy(gradient.pending()).deliver()
    gradient.finish()
    assert gradient.scale() == 65536


def test_a_second_derivative_does_not_disturb():
    gradient = LossGradient()
    x = torch.ones(2, requires_grad=True)
    loss = x.pow(3).sum()
    gradient.watch(loss)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    slope.sum().backward()
    gradient.end_tick()
    assert gradient.scale() is None


def test_it_can_be_pickled_before_it_has_seen_anything():
    assert pickle.loads(pickle.dumps(LossGradient())).scale() is None


def test_copies_of_numbers_share_memory_with_none_of_them_and_keep_their_dtype():
    slots, numbers = Slots(), [torch.tensor(float(n), requires_grad=True) for n in range(2 * MOST_OPEN)]
    copies = [slots.copy(number) for number in numbers]
    with torch.no_grad():
        for number in numbers:
            number.fill_(-1.0)
    assert [copy.item() for copy in copies] == list(range(2 * MOST_OPEN))
    assert not any(copy.requires_grad for copy in copies)
    half, double = slots.copy(torch.tensor(1.5).half()), slots.copy(torch.tensor(2.5).double())
    assert (half.item(), half.dtype, double.item(), double.dtype) == (1.5, torch.float16, 2.5, torch.float64)


@pytest.mark.parametrize("parts", [1, 3, 5])
def test_no_step_is_split_where_losses_are_added_at_once(losses, parts):
    preprocessor, steps = losses(), 2 * MOST_OPEN
    preprocessor.gradient.is_looking = False
    for number in range(parts * steps):
        loss = torch.tensor(float(number), requires_grad=True)
        assert preprocessor.take_quietly(nn.MSELoss(), loss, number // parts)
    expected = np.arange(parts * steps).reshape(steps, parts).mean(1)
    assert [number for _, number in preprocessor.recent("train")][-RECENT:] == expected[-RECENT:].tolist()
    assert preprocessor.release().series.values()["train"] == expected.tolist()


@pytest.mark.parametrize("whole", [True, False], ids=["one of each step", "micro-batches"])
def test_losses_of_idle_and_other_steps_come_in_their_order_and_few_pieces(losses, whole, monkeypatch):
    preprocessor, step, pieces = losses(), [0], []
    preprocessor.open_step, preprocessor.gradient.is_looking = lambda: step[0], False
    add_steps = Series.add_steps

    def count(self, *args):
        pieces.append(len(args[1]))
        add_steps(self, *args)

    monkeypatch.setattr(Series, "add_steps", count)
    for step[0] in range(100):
        loss = torch.tensor(float(step[0]), requires_grad=True)
        if step[0] % 25:
            assert preprocessor.take_quietly(nn.MSELoss(), loss, step[0])
        else:
            hand_over(preprocessor, loss)
        if not whole and step[0] == 30:
            assert preprocessor.take_quietly(nn.MSELoss(), loss + 2, step[0])
    assert preprocessor.value["train"] == [31.0 if step == 30 and not whole else float(step) for step in range(100)]
    assert pieces == ([1, 24] * 4 if whole else [1] * 100)
