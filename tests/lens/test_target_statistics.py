"""What enters a loss: targets, outputs, and their classes."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import TargetStatistics
from monitorch.visualizer import DummyVisualizer

CLASSES = 10


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((None,), {}, r"loss_fn takes a module such as nn.CrossEntropyLoss\(\), not None"),
        ((nn.functional.cross_entropy,), {}, "loss_fn takes a module .*, not <function"),
        ((nn.MSELoss,), {}, "loss_fn takes a module .*, not <class"),
        ((nn.MSELoss(),), {"classes": 0}, "classes takes a whole number of at least 1, not 0"),
        ((nn.MSELoss(),), {"classes": 2.5}, "classes takes a whole number of at least 1, not 2.5"),
        ((nn.MSELoss(),), {"classes": True}, "classes takes a whole number of at least 1, not True"),
        ((nn.MSELoss(),), {"classes": "all"}, "classes takes a whole number of at least 1, not 'all'"),
    ],
)
def test_wrong_options_are_refused(args, options, text):
    with pytest.raises(OptionError, match=text):
        TargetStatistics(*args, **options)


def test_tags(tags_of):
    shares = ("Class Shares", "Ignored Targets")
    names = [*(f"Loss Input {what}" for what in ("Mean", "Std", "Range", "Nonfinite Elements")), "Output Row Sum"]
    names += ["Class Perplexity Of Batch", "Classes", "Class Ratio", *shares]
    assert tags_of(TargetStatistics(nn.MSELoss())) == [
        (name, name == "Class Ratio", False, True, "NUMERICAL", (0, 1) if name in shares else None) for name in names
    ]


@pytest.fixture
def step():
    """One training pass with these targets."""

    def run(model, loss_fn, targets):
        loss_fn(model(torch.ones(len(targets), 3)), targets).backward()

    return run


def test_unshuffled_data_can_be_told_from_shuffled_ones(watch, shown, step):
    model, loss_fn = nn.Linear(3, CLASSES), nn.CrossEntropyLoss()
    inspector = watch(model, TargetStatistics(loss_fn))
    labels = torch.arange(CLASSES).repeat_interleave(32)
    found = []
    for order in (torch.arange(len(labels)), torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))):
        for targets in labels[order].split(32):
            step(model, loss_fn, targets)
        inspector.tick_epoch()
        batch = shown.values("Class Perplexity Of Batch")["target"]["mean"]
        found.append((batch, shown.values("Classes")["target"]["perplexity"]))
    assert found[0] == (pytest.approx(1), pytest.approx(CLASSES))
    assert found[1][0] > 7
    assert found[1][1] == pytest.approx(CLASSES)
    assert shown.values("Class Shares")["target"] == {f"class {n}": pytest.approx(0.1) for n in range(CLASSES)}
    assert shown.values("Class Ratio")["target"] == {"value": 1}
    assert shown.values("Classes")["target"]["seen"] == CLASSES


def test_a_model_that_always_says_the_same_is_seen(watch, shown, step):
    model, loss_fn = nn.Linear(3, CLASSES), nn.CrossEntropyLoss()
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.eye(CLASSES)[4])
    inspector = watch(model, TargetStatistics(loss_fn, classes=3))
    step(model, loss_fn, torch.tensor([1, 2, 2, 9, 4, 4, 4, 4]))
    inspector.tick_epoch()
    assert shown.values("Classes")["output"] == {"seen": 1, "perplexity": pytest.approx(1)}
    assert shown.values("Class Shares") == {
        "output": {"class 1": 0, "class 2": 0, "class 4": 1, "others": 0},
        "target": {"class 1": 1 / 8, "class 2": 2 / 8, "class 4": 4 / 8, "others": 1 / 8},
    }


@pytest.mark.parametrize("doubled", [True, False])
def test_outputs_that_are_probabilities_already_are_seen(doubled, watch, shown, step):
    model, loss_fn = nn.Sequential(nn.Linear(3, 4), *[nn.Softmax(1)] * doubled), nn.CrossEntropyLoss()
    inspector = watch(model, TargetStatistics(loss_fn))
    step(model, loss_fn, torch.tensor([0, 1, 2]))
    inspector.tick_epoch()
    sums = shown.values("Output Row Sum")["output"]
    assert (sums == {"min": pytest.approx(1), "max": pytest.approx(1)}) == doubled


def test_targets_that_the_last_activation_cannot_reach_are_seen(watch, shown, step):
    model, loss_fn = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), nn.MSELoss()
    inspector = watch(model, TargetStatistics(loss_fn))
    step(model, loss_fn, torch.tensor([[-3.0], [1.0]]))
    inspector.tick_epoch()
    found = shown.values("Loss Input Range")
    assert found["target"] == {"min": -3, "max": 1}
    assert 0 < found["output"]["min"] <= found["output"]["max"] < 1
    assert shown.values("Loss Input Mean")["target"] == {"mean": -1}
    assert shown.values("Loss Input Std")["target"] == {"mean": 2}
    assert shown.values("Output Row Sum") == shown.values("Classes") == {}


def test_ignored_targets_do_not_count(watch, shown, step):
    model, loss_fn = nn.Linear(3, 4), nn.CrossEntropyLoss(ignore_index=0)
    inspector = watch(model, TargetStatistics(loss_fn))
    step(model, loss_fn, torch.tensor([0, 0, 0, 2]))
    inspector.tick_epoch()
    assert shown.values("Ignored Targets") == {"target": {"mean": 0.75}}
    assert shown.values("Class Shares")["target"] == {f"class {n}": float(n == 2) for n in range(4)}


def test_too_many_classes_are_not_counted(step):
    model, loss_fn = nn.Linear(3, 5000), nn.CrossEntropyLoss()
    inspector = PyTorchInspector([TargetStatistics(loss_fn)], module=model, visualizer="dummy")
    step(model, loss_fn, torch.tensor([0, 1, 2]))
    inspector.tick_epoch()
    tags = {record.tag for record in inspector.records()}
    assert {"Loss Input Range", "Output Row Sum"} <= tags
    assert not {tag for tag in tags if tag.startswith("Class")}


def test_a_saved_state_goes_on_in_the_middle_of_a_tick(step):
    def begin():
        model, loss_fn = nn.Linear(3, 4), nn.CrossEntropyLoss()
        lens = TargetStatistics(loss_fn)
        return model, loss_fn, PyTorchInspector([lens], module=model, visualizer="dummy", on_error="raise")

    model, loss_fn, inspector = begin()
    step(model, loss_fn, torch.tensor([0, 0]))
    again, other_loss, resumed = begin()
    resumed.load_state_dict(inspector.state_dict())
    step(again, other_loss, torch.tensor([3, 3]))
    resumed.tick_epoch()
    found = {(record.tag, record.statistic): record.value for record in resumed.records() if record.layer == "target"}
    assert found["Classes", "perplexity"] == pytest.approx(2)
    assert found["Class Perplexity Of Batch", "mean"] == pytest.approx(1)
    assert found["Class Shares", "class 3"] == 0.5


class Later(DummyVisualizer):
    """Ticks are shown by a thread of the inspector."""

    deferred = True


def test_a_tick_that_a_thread_shows_has_its_own_classes(step):
    model, loss_fn = nn.Linear(3, 4), nn.CrossEntropyLoss()
    inspector = PyTorchInspector([TargetStatistics(loss_fn)], module=model, visualizer=Later(), on_error="raise")
    for label in (0, 3):
        step(model, loss_fn, torch.tensor([label, label, 1]))
        inspector.tick()
    shares = [record for record in inspector.records() if (record.tag, record.layer) == ("Class Shares", "target")]
    assert [record.value for record in shares] == pytest.approx([0, 1 / 3, 0, 2 / 3])
