"""What symptoms see of a run, against loops and formulas by hand."""

import math

import numpy as np
import pytest

from monitorch.diagnosis import RunFacts, SampleHistory, signals
from monitorch.diagnosis.history import Parameter
from monitorch.diagnosis.run import PATIENCE, SHORT, RunView, expected_perplexity, nan_median, rolling_median


def holes(stream, shape, share):
    values = stream.normal(size=shape)
    values[stream.random(shape) < share] = np.nan
    return values


def median_of(values):
    known = sorted(value for value in values if not math.isnan(value))
    return float(np.median(known)) if known else math.nan


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(4, 1), (4, 2), (3, 5), (2, 3, 6)])
def test_nan_median_is_that_of_a_loop(shape, share):
    values = holes(np.random.default_rng(len(shape)), shape, share)
    expected = np.array([median_of(row) for row in values.reshape(-1, shape[-1])]).reshape(shape[:-1])
    np.testing.assert_allclose(nan_median(values), expected, rtol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize(("rows", "columns"), [(0, 2), (1, 1), (4, 2), (5, 2), (30, 3), (6, 0)])
def test_rolling_median_is_that_of_a_loop(rows, columns, window):
    values = holes(np.random.default_rng(rows), (rows, columns), 0.4)
    expected = np.full(values.shape, np.nan)
    for row in range(window - 1, rows):
        for column in range(columns):
            expected[row, column] = median_of(values[row - window + 1 : row + 1, column])
    np.testing.assert_allclose(rolling_median(values, window), expected, rtol=1e-12)


def test_cross_entropy_of_always_the_same_is_the_entropy_of_the_classes(story):
    counts = [30, 0, 60, 10]
    shares = [0.3, 0.6, 0.1]
    expected = -sum(share * math.log(share) for share in shares)
    for kind in ("CrossEntropyLoss", "NLLLoss"):
        run = RunView(story(loss_fn=kind, target_counts=counts).history)
        assert run.trivial_loss == pytest.approx(expected)


@pytest.mark.parametrize("counts", [[], [0, 0], [50, 0]])
def test_with_one_class_nothing_is_trivial(story, counts):
    assert math.isnan(RunView(story(loss_fn="CrossEntropyLoss", target_counts=counts).history).trivial_loss)


def targets(story, kind, batches):
    """The targets of some batches of one size."""
    told = story(loss_fn=kind)
    told.add(signals.LOSS_INPUT_MEAN, target=[np.mean(batch) for batch in batches])
    return told.add(signals.LOSS_INPUT_STD, target=[np.std(batch) for batch in batches])


def test_squared_and_absolute_error_of_always_saying_the_mean(story):
    batches = np.random.default_rng(0).normal(3.0, 2.0, size=(40, 500))
    squared = RunView(targets(story, "MSELoss", batches).history).trivial_loss
    absolute = RunView(targets(story, "L1Loss", batches).history).trivial_loss
    assert squared == pytest.approx(np.mean((batches - 3.0) ** 2), rel=0.02)
    assert absolute == pytest.approx(np.mean(np.abs(batches - 3.0)), rel=0.02)


@pytest.mark.parametrize("kind", ["BCELoss", "BCEWithLogitsLoss"])
def test_binary_cross_entropy_of_always_saying_the_same(story, kind):
    batches = np.random.default_rng(0).random((20, 400)) < 0.3
    mean = batches.mean()
    expected = -(mean * math.log(mean) + (1 - mean) * math.log(1 - mean))
    assert RunView(targets(story, kind, batches).history).trivial_loss == pytest.approx(expected)


def test_what_is_trivial_of_another_loss_is_not_known(story):
    for kind in (None, "HingeEmbeddingLoss"):
        assert math.isnan(RunView(targets(story, kind, np.ones((3, 4))).history).trivial_loss)
    assert math.isnan(RunView(story(loss_fn="MSELoss").history).trivial_loss)
    assert math.isnan(RunView(targets(story, "BCELoss", np.ones((3, 4))).history).trivial_loss)


@pytest.mark.parametrize(
    ("losses", "facts", "is_stuck", "learns", "harm"),
    [
        ("flat", {}, True, False, "error"),
        ("falling", {}, False, True, "info"),
        ("a little", {}, False, False, "warning"),
        ("short", {}, False, False, "info"),  # it may come
        ("none", {}, False, False, "info"),
        ("flat", {"optimizers": 2}, False, False, "info"),  # a GAN's losses need not fall
        ("flat", {"since": 500}, False, False, "warning"),  # where it began is not known
        ("falling", {"loss_fn": "CrossEntropyLoss", "target_counts": [70, 30]}, False, True, "info"),
        (
            "to trivial",
            {"loss_fn": "CrossEntropyLoss", "target_counts": [50, 50]},
            True,
            False,
            "error",
        ),  # no more than that
        ("not finite", {}, False, False, "warning"),
        ("finite before", {}, False, True, "info"),
        ("early", {}, False, False, "info"),  # it may still learn much
        ("late", {}, False, False, "warning"),
        ("negative", {}, True, False, "error"),
        ("more negative", {}, False, True, "info"),
    ],
)
def test_whether_a_run_learns(story, falling, flat, losses, facts, is_stuck, learns, harm):
    known = {
        "flat": flat(),
        "falling": falling(),
        "a little": falling(last=1.5),
        "short": flat(SHORT - 1),
        "none": [],
        "to trivial": falling(first=5.0, last=0.69),
        "not finite": [math.nan] * PATIENCE,
        "finite before": [*falling(), *[math.nan] * 200],
        "early": falling(PATIENCE - 1, 2.0, 1.5),
        "late": falling(PATIENCE, 2.0, 1.5),
        "negative": [-1.0] * 100,
        "more negative": np.linspace(-1.0, -3.0, 100),
    }
    run = RunView(story(**facts).losses(known[losses]).history)
    assert (run.is_stuck, run.learns, run.harm()) == (is_stuck, learns, harm)


def test_without_losses_nobody_knows_whether_something_does_harm(story):
    run = RunView(story().add(signals.GRADIENT, fc0__weight=np.ones(500)).history)
    assert (run.is_stuck, run.learns, run.harm(), run.harm("warning")) == (False, False, "info", "warning")


def test_what_validation_shows_to_be_learned_is_not_stuck(story, flat):
    facts = {"loss_fn": "CrossEntropyLoss", "target_counts": [50, 50]}
    told = story(**facts).losses(flat(100, math.log(2)))
    assert RunView(told.history).is_stuck
    assert RunView(told.checks([0.69, 0.68], [50, 90]).history).is_stuck
    assert not RunView(told.checks([0.4], [100]).history).is_stuck


def test_harm_is_never_less_than_said(story, falling):
    assert RunView(story().losses(falling()).history).harm("warning") == "warning"


@pytest.mark.parametrize(
    ("loss_fn", "last", "first_loss"),
    [
        ("CrossEntropyLoss", 2.5, 2.8),
        ("CrossEntropyLoss", 60.0, 2.8),  # far from where it began
        ("MSELoss", 2.5, 2.8),
        (None, 2.5, 2.8),
        (None, 60.0, 300.0),  # it may be meant to rise
    ],
)
def test_a_loss_that_the_first_steps_made_explode_began_below(story, loss_fn, last, first_loss):
    run = RunView(story(loss_fn=loss_fn).losses([2.8, 90.0, 300.0, 900.0, 400.0, *[last] * 100]).history)
    assert (run.first_loss, run.learns) == (first_loss, first_loss == 300.0)


def test_a_loss_that_rises_a_little_at_first_began_with_the_median(story, falling):
    values = [2.8, 3.5, 4.0, 4.4, 4.1, *falling(100)]
    assert RunView(story(loss_fn="CrossEntropyLoss").losses(values).history).first_loss == 4.0


def test_first_and_last_loss_are_medians_of_finite_ones(story):
    run = RunView(story().losses([math.inf, 5.0, 7.0, 6.0, math.nan, 4.0, 2.0, 1.0, 3.0, 2.0]).history)
    assert run.first_loss == 6.0
    assert run.last_loss == 2.0
    assert run.fallen == pytest.approx(2 / 3)
    assert run.loss_before(6) == np.median([5.0, 7.0, 6.0, 4.0])
    assert math.isnan(run.loss_before(0))


def test_who_has_left_the_optimizer(story):
    told = story().add(
        signals.GROUP,
        steps=[1, 2, 3, 4],
        fc0__weight=[0, 0, -1, -1],
        fc1__weight=[0, -1, 0, 0],
        fc2__weight=[-1, -1, -1, -1],
    )
    assert RunView(told.history).left_optimizer == {"fc0.weight": 3}


def test_names_and_places():
    facts = RunFacts(
        {"a": "Linear", "b": "ReLU"}, {"a.w": Parameter("a", (2, 3), "float32"), "s": Parameter("", (), "f")}
    )
    run = RunView(SampleHistory(facts))
    assert [run.layer_of(name) for name in ("a.w", "s", "c.d.w", "x")] == ["a", None, "c.d", None]
    assert [run.size(name) for name in ("a.w", "s")] == [6, 1]
    assert [run.place(layer) for layer in (None, "a", "b", "b (backward)", "other")] == [-1, 0, 1, 1, 2]
    assert run.weights == ["a.w"]


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_variety_of_a_batch_is_that_of_drawn_ones(batch):
    shares = (0.5, 0.3, 0.2)
    stream, found = np.random.default_rng(5), []
    for _ in range(400):
        counts = np.bincount(stream.choice(3, batch, p=shares), minlength=3) / batch
        found.append(math.exp(-sum(share * math.log(share) for share in counts if share)))
    mean, spread = expected_perplexity(shares, batch)
    assert mean == pytest.approx(np.mean(found), rel=0.1)
    assert spread == pytest.approx(np.std(found), rel=0.3)
