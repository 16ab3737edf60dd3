"""What losses alone tell, and the healthy runs that look like it."""

import math
import re
import tracemalloc

import numpy as np
import pytest

from monitorch.diagnosis import signals, switched_off
from monitorch.diagnosis.symptoms import (
    BadInitialLoss,
    LeftTrainMode,
    LossSpike,
    NoLabelSignal,
    Overfitting,
    TrainEvalMismatch,
)


def noisy(values, noise=0.02, seed=0):
    return np.asarray(values) * (1 + noise * np.random.default_rng(seed).normal(size=len(values)))


class TestLossSpike:
    @staticmethod
    def jump(losses, at, by):
        losses = np.array(losses, float)
        losses[at - 1] = by
        return losses

    def test_a_jump_that_comes_back(self, story, falling):
        told = story().losses(self.jump(noisy(falling(200, 2.0, 0.5)), 130, 8.0))
        found = told.one(LossSpike())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 130, 131, "warning")
        assert "to 8 at step 130, and was back 1 step later" in found.explanation
        assert found.remedy.action == "clip"

    @pytest.mark.parametrize(("level", "severity"), [(0.6, "warning"), (1.9, "error")])
    def test_a_jump_to_another_level_is_not_said_to_be_back(self, story, falling, level, severity):
        losses = noisy(np.concatenate([falling(129, 1.9, 0.01), [6.4] * 5, np.full(100, level)]))
        found = story().losses(losses).one(LossSpike())
        assert (found.step, found.severity, found.remedy.action) == (130, severity, None)
        (since,) = re.findall(r"has been about (\S+) since", found.explanation)
        assert float(since) == pytest.approx(level, rel=0.05)
        assert "back" not in found.explanation

    def test_an_unusual_batch_is_named(self, story):
        told = story().losses(self.jump(noisy(np.ones(200)), 130, 8.0))
        told.add(signals.INPUT_STD, input=np.where(np.arange(1, 201) == 130, 20.0, 1.0))
        told.add(signals.ALL_GRADIENTS, all=2.5)
        found = told.one(LossSpike())
        assert "The batch of that step was 20 times as large as usual." in found.explanation
        assert [shown.series for shown in found.evidence] == ["loss", signals.INPUT_STD]
        assert found.remedy.arguments == {"max_norm": 5.0}

    @pytest.mark.parametrize("seed", range(5))
    def test_heavy_tails_are_no_spikes(self, story, seed):
        stream = np.random.default_rng(seed)
        losses = np.exp(0.3 * stream.normal(size=400) + 2.5 * (stream.random(400) < 0.05))
        assert story().losses(losses).find(LossSpike()) == []

    def test_near_zero_a_factor_of_a_hundred_is_nothing(self, story, falling):
        losses = self.jump(noisy(falling(200, 2.0, 1e-4)), 180, 0.05)
        assert story().losses(losses).find(LossSpike()) == []

    def test_a_loss_that_rises_for_good_or_step_by_step_is_something_else(self, story):
        for_good = noisy(np.where(np.arange(200) < 120, 1.0, 9.0))
        slowly = noisy(np.concatenate([np.ones(120), np.geomspace(1.0, 9.0, 15), np.ones(65)]))
        assert story().losses(for_good).find(LossSpike()) == []
        assert story().losses(slowly).find(LossSpike()) == []

    def test_a_rise_that_a_higher_rate_has_made(self, story):
        losses = noisy(np.concatenate([np.ones(120), np.geomspace(1.0, 3.0, 8), np.geomspace(3.0, 1.0, 72)]))
        steps = np.arange(10, 201, 10)
        told = story().losses(losses).weights(signals.RATE, None, None, np.where(steps == 130, 0.1, 0.01), steps=steps)
        found = told.one(LossSpike())
        assert 120 <= found.step <= 128
        assert "halfway back" in found.explanation
        warm = story().losses(losses).weights(signals.RATE, None, None, steps / 100, steps=steps)
        assert warm.find(LossSpike()) == []

    def test_of_a_noisy_loss_a_jump_must_be_larger(self, story, falling):
        losses = noisy(falling(300, 1.4, 0.15), noise=0.5).clip(0.02)
        assert story().losses(losses).find(LossSpike()) == []
        assert story().losses(self.jump(losses, 200, 0.9)).find(LossSpike()) == []
        assert story().losses(self.jump(losses, 200, 6.0)).one(LossSpike()).step == 200

    @pytest.mark.parametrize("shift", [-1.0, -10.0, 5.0])
    def test_losses_may_be_below_zero(self, story, falling, shift):
        losses = noisy(falling(200, 2.0, 0.5)) + shift
        assert story().losses(losses).find(LossSpike()) == []
        assert story().losses(self.jump(losses, 130, 30.0)).one(LossSpike()).step == 130

    @pytest.mark.parametrize(("at", "by"), [(150_000, 8.0), (None, None)])
    def test_a_long_run_takes_no_more_memory_than_a_few_copies_of_its_losses(self, story, at, by):
        losses = noisy(np.ones(200_000))
        told = story().losses(losses if at is None else self.jump(losses, at, by))
        tracemalloc.start()
        found = told.find(LossSpike())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert [one.step for one in found] == ([] if at is None else [at])
        assert most < 25 * losses.nbytes

    def test_of_a_long_run_with_a_heavy_tail_some_losses_tell_that_it_has_one(self, story):
        stream = np.random.default_rng(0)
        tail = np.exp(0.3 * stream.normal(size=20_000) + 2.5 * (stream.random(20_000) < 0.05))
        assert story().losses(self.jump(tail, 15_000, 900.0)).find(LossSpike()) == []

    def test_losses_that_are_not_finite_are_another_matter(self, story):
        losses = self.jump(self.jump(np.ones(200), 130, 8.0), 5, math.nan)
        assert story().losses(losses).find(LossSpike()) == []

    def test_short_runs_tell_nothing(self, story):
        assert story().losses(self.jump(np.ones(39), 30, 8.0)).find(LossSpike()) == []

    def test_thresholds_can_be_changed(self, story):
        told = story().losses(self.jump(noisy(np.ones(200)), 130, 8.0))
        assert told.find(LossSpike(z=500)) == []
        assert told.find(LossSpike(jump=10)) == []
        assert told.one(LossSpike(window=20)).step == 130


class TestBadInitialLoss:
    @staticmethod
    def start(story, losses, **facts):
        known = {"loss_fn": "CrossEntropyLoss", "classes": 10, "batch": 32.0, **facts}
        return story(**known).losses(losses)

    def test_one_batch_is_enough_if_it_is_large(self, story):
        found = self.start(story, [9.0]).one(BadInitialLoss())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc2", 1, 1, "warning")
        assert "2.3 with 10 classes" in found.explanation
        assert found.remedy.arguments == {"layers": ["fc2"], "gain": 0.1}

    def test_a_last_layer_that_shares_the_weight_of_an_embedding_is_named(self, story):
        told = self.start(story, [60.0])
        told.facts.ran = ["fc0", "act0", "fc1", "act1", "fc2"]
        for part in ("weight", "bias"):
            del told.facts.parameters[f"fc2.{part}"]
        assert told.one(BadInitialLoss()).layer == "fc2"

    def test_yes_or_no_are_two_classes(self, story):
        found = self.start(story, [9.0], loss_fn="BCEWithLogitsLoss", classes=None).one(BadInitialLoss())
        assert "0.693 with 2 classes" in found.explanation

    def test_of_small_batches_five_are_needed(self, story):
        assert self.start(story, [9.0] * 4, batch=2.0).find(BadInitialLoss()) == []
        assert self.start(story, [9.0, 1.0, 9.0, 8.0, 9.0], batch=2.0).one(BadInitialLoss()).step == 1
        assert self.start(story, [9.0, 1.0, 2.0, 3.0, 9.0], batch=2.0).find(BadInitialLoss()) == []

    def test_later_losses_of_small_batches_may_be_high_because_of_steps(self, story):
        losses = [2.0, 3.0, 2.0, 8.0, 40.0, *np.geomspace(100.0, 1e9, 100)]
        assert self.start(story, losses, batch=1.0).find(BadInitialLoss()) == []

    @pytest.mark.parametrize(
        ("losses", "facts"),
        [
            ([4.6], {}),  # plain He initialisation
            ([9.0], {"classes": 1000}),
            ([9.0], {"loss_fn": "MSELoss"}),
            ([9.0], {"loss_is_mean": False}),
            ([9.0], {"optimizers": 2}),
            ([1.4], {"loss_fn": "BCEWithLogitsLoss", "classes": None}),
            ([9.0], {"loss_fn": None}),
            ([9.0], {"classes": None}),
            ([9.0], {"classes": 1}),
            ([9.0], {"since": 10}),
            ([math.nan], {}),
            ([], {}),
        ],
    )
    def test_other_losses_are_fine_or_not_known(self, story, losses, facts):
        assert self.start(story, losses, **facts).find(BadInitialLoss()) == []

    def test_a_run_that_learns_all_the_same_is_only_odd(self, story, falling):
        assert self.start(story, falling(first=9.0)).one(BadInitialLoss()).severity == "info"

    def test_thresholds_can_be_changed(self, story):
        assert self.start(story, [9.0]).find(BadInitialLoss(factor=4)) == []
        assert self.start(story, [9.0]).find(BadInitialLoss(batch=64)) == []


class TestOverfitting:
    CHECKS = range(50, 501, 50)

    def test_validation_rises_while_training_falls(self, story, falling):
        checks = [1.5, 1.2, 1.0, 1.05, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2]
        found = story().losses(falling(500)).checks(checks, self.CHECKS).one(Overfitting())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 150, 350, "warning")
        assert "lowest at step 150" in found.explanation

    def test_a_small_rise_is_worth_an_info(self, story, falling):
        checks = [1.5, 1.2, 1.0, 1.05, 1.1, 1.12, 1.13, 1.14, 1.15, 1.15]
        assert story().losses(falling(500)).checks(checks, self.CHECKS).one(Overfitting()).severity == "info"

    @pytest.mark.parametrize(("last", "is_bad"), [(1.0, False), (0.98, False), (0.96, False), (0.85, True)])
    def test_training_must_have_fallen_for_something_to_be_memorised(self, story, last, is_bad):
        checks = [1.5, 1.2, 1.0, 1.05, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2]
        losses = np.interp(np.arange(500), [0, 100, 150, 499], [2.0, 1.0, 1.0, last])
        assert len(story().losses(losses).checks(checks, self.CHECKS).find(Overfitting())) == is_bad

    def test_it_cannot_be_known_right_after_the_lowest(self, story, falling):
        found = story().losses(falling(500)).checks([1.0, 2.0, 2.1, 2.2], [100, 200, 300, 400]).one(Overfitting())
        assert (found.step, found.detected_at) == (100, 300)

    @pytest.mark.parametrize(
        ("checks", "last", "step"),
        [
            ([1.4, 1.3, 1.25, 1.27, 1.25, 1.26, 1.24, 1.26, 1.25, 1.25], 0.01, 300),  # it stays far above
            ([1.4, 1.3, 1.25, 1.27, 1.25, 1.26, 1.24, 1.26, 1.25, 1.25], 0.3, None),  # training has not got so far
            ([1.4, 1.0, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4], 0.01, None),  # most of it helps
            ([1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.35, 1.3, 1.2, 1.1], 0.01, None),  # it still falls
        ],
    )
    def test_validation_that_stays_while_training_vanishes_is_worth_an_info(self, story, falling, checks, last, step):
        found = story().losses(falling(500, 2.0, last)).checks(checks, self.CHECKS).find(Overfitting())
        assert [(one.step, one.severity) for one in found] == ([] if step is None else [(step, "info")])

    @pytest.mark.parametrize(
        ("checks", "last", "step"),
        [
            ([1.5, 1.45, 1.4, 1.5, 1.4], 0.6, 260),  # hardly better than guessing
            ([1.5, 1.3, 1.2, 1.25, 1.2], 0.6, None),  # a quarter of it helps
            ([1.5, 1.45, 1.4, 1.5, 1.4], 0.9, None),  # training has not got so far
            ([1.5, 1.45, 1.4, 1.5, 1.25], 0.6, None),  # it begins to help
        ],
    )
    def test_validation_that_stays_at_guessing_needs_no_such_gap(self, story, checks, last, step):
        told = story(loss_fn="CrossEntropyLoss", target_counts=[10] * 5).losses(np.linspace(1.7, last, 200))
        told.losses(np.full(300, last), np.arange(201, 501)).checks(checks, [20, 140, 260, 380, 500])
        found = told.find(Overfitting())
        assert [(one.step, one.severity) for one in found] == ([] if step is None else [(step, "info")])

    @pytest.mark.parametrize("checks", [[62.0, 80.0, 120.0, 200.0, 400.0], [62.0] * 5])
    def test_validation_that_was_always_far_worse_than_guessing_is_of_other_data(self, story, falling, checks):
        told = story(loss_fn="CrossEntropyLoss", target_counts=[10] * 5).losses(falling(500, 1.7, 0.1))
        found = told.checks(checks, [20, 140, 260, 380, 500]).one(Overfitting())
        assert "Guessing gives 1.61, so validation data are not like training data" in found.explanation
        assert "memorises" not in found.explanation
        assert "by heart" not in found.explanation
        late = story(loss_fn="CrossEntropyLoss", target_counts=[10] * 5).losses(falling(500, 1.7, 1e-4))
        late = late.checks(checks, [340, 380, 420, 460, 500]).one(Overfitting())
        assert "not like" not in late.explanation

    @pytest.mark.parametrize(("rise", "severity"), [(0.05, None), (0.1, "info"), (0.4, "warning")])
    def test_losses_may_be_negative(self, story, rise, severity):
        checks = [0.0, -0.5, -1.0, *[rise - 1.0] * 7]
        found = story().losses(np.linspace(1.0, -3.0, 500)).checks(checks, self.CHECKS).find(Overfitting())
        assert [one.severity for one in found] == ([severity] if severity else [])

    @pytest.mark.parametrize(
        ("checks", "first", "last"),
        [
            ([1.5, 1.2, 1.0, 0.9, 0.92, 0.91, 0.9, 0.93, 0.9, 0.91], 2.0, 0.1),  # a gap alone
            ([1.5, 1.2, 1.0, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6], 1.0, 3.0),  # training rises, too
            ([1.5, 1.2, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0], 2.0, 0.1),  # it came back
            ([1.5, 1.2, 1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 2.0], 2.0, 0.1),  # the last one alone may be noise
            ([1.5, 1.2, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 2.0, 0.1),  # noise
            ([1.5, 1.2, 1.0, math.nan, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5], 2.0, 0.1),
        ],
    )
    def test_healthy_ones(self, story, falling, checks, first, last):
        told = story().losses(falling(500, first, last)).checks(checks, self.CHECKS)
        assert told.find(Overfitting()) == []

    def test_two_evaluations_are_too_few(self, story, falling):
        assert story().losses(falling()).checks([1.0, 3.0], [50, 100]).find(Overfitting()) == []

    def test_thresholds_can_be_changed(self, story, falling):
        told = story().losses(falling(500)).checks([1.0, 1.1, 1.2, 1.3, 1.4], range(100, 501, 100))
        assert len(told.find(Overfitting())) == 1
        assert told.find(Overfitting(rise=2.0)) == []
        assert told.find(Overfitting(share=0.5)) == []


class TestNoLabelSignal:
    @staticmethod
    def guess(story, **facts):
        known = {"loss_fn": "CrossEntropyLoss", "classes": 10, "target_counts": [50] * 10, **facts}
        return story(**known)

    def test_validation_is_never_better_than_guessing(self, story, falling):
        told = self.guess(story).losses(falling(400, 2.5, 0.5)).checks([2.35, 2.31, 2.4, 2.6], [100, 200, 300, 400])
        found = told.one(NoLabelSignal())
        assert (found.step, found.severity) == (100, "error")
        assert found.detected_at == 300  # two evaluations tell nothing
        assert "guessing gives 2.3" in found.explanation
        assert "nothing to do with what the model sees" in found.explanation  # inputs may hold more than that

    @pytest.mark.parametrize(
        ("checks", "last"),
        [
            ([2.3, 2.0, 1.5, 2.5], 0.5),  # it was better once
            ([2.35, 2.31, 2.4, 2.6], 2.2),  # training is no better
            ([9.0, 8.0, 9.0, 9.0], 0.5),  # ruined by something else
            ([2.35, 2.31], 0.5),
        ],
    )
    def test_healthy_ones(self, story, falling, checks, last):
        told = self.guess(story).losses(falling(400, 2.5, last)).checks(checks, np.arange(1, len(checks) + 1) * 100)
        assert told.find(NoLabelSignal()) == []

    @pytest.mark.parametrize(
        ("batch", "means", "is_bad"), [(24.0, 0.5, False), (24.0, [0.5, 0.4], True), (900.0, 0.5, True)]
    )
    def test_a_few_samples_in_every_step_are_learned_by_heart(self, story, falling, batch, means, is_bad):
        told = story(loss_fn="MSELoss", batch=batch).losses(falling(400, 1.0, 0.001))
        told.add(signals.LOSS_INPUT_MEAN, target=np.resize(means, 400))
        told.add(signals.LOSS_INPUT_STD, target=np.ones(400)).checks([1.01, 1.02, 1.1, 1.2], [100, 200, 300, 400])
        assert len(told.find(NoLabelSignal())) == is_bad
        assert len(told.find(NoLabelSignal(few=10))) == 1

    def test_without_classes_guessing_is_not_known(self, story, falling):
        told = self.guess(story, target_counts=[]).losses(falling(400, 2.5, 0.5))
        assert told.checks([2.35, 2.31, 2.4], [100, 200, 300]).find(NoLabelSignal()) == []

    def test_thresholds_can_be_changed(self, story, falling):
        told = self.guess(story).losses(falling(400, 2.5, 1.5)).checks([2.0, 2.1, 2.1], [100, 200, 300])
        assert told.find(NoLabelSignal()) == []
        assert len(told.find(NoLabelSignal(validation=0.8))) == 1
        assert told.find(NoLabelSignal(validation=0.8, training=0.5)) == []


class TestLeftTrainMode:
    def test_a_model_that_stays_in_eval_mode_after_an_evaluation(self, story, falling):
        found = story().losses(falling(40)).checks(falling(61), range(40, 101)).one(LeftTrainMode())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 41, 70, "warning")
        assert found.explanation.startswith("All losses since step 41 were seen in eval mode")
        assert found.remedy.text == "Call model.train() after each evaluation."
        assert (found.evidence[0].steps[0], found.evidence[0].steps[-1]) == (41, 100)

    @pytest.mark.parametrize(("later", "is_found"), [(29, False), (30, True)])
    def test_it_takes_some_steps_to_be_sure(self, story, falling, later, is_found):
        told = story().losses(falling(40)).checks(falling(later), range(41, 41 + later))
        assert bool(told.find(LeftTrainMode())) == is_found
        assert told.find(LeftTrainMode(steps=31)) == []

    @pytest.mark.parametrize(
        "steps",
        [
            [100] * 60,  # one long evaluation
            range(10, 101, 10),  # evaluations now and then
        ],
        ids=str,
    )
    def test_evaluations_are_no_training(self, story, falling, steps):
        assert story().losses(falling(100)).checks(falling(len(steps)), steps).find(LeftTrainMode()) == []

    def test_not_all_losses_need_to_be_seen(self, story, falling):
        told = story().losses(falling(40)).checks(falling(20), range(41, 101, 3)).weights(signals.GRADIENT, *[1.0] * 3)
        assert told.find(LeftTrainMode()) == []
        assert told.one(LeftTrainMode(share=0.3)).step == 41

    def test_a_run_that_never_was_in_train_mode_may_be_meant_so(self, story, falling):
        assert story().checks(falling(100), range(1, 101)).find(LeftTrainMode()) == []

    def test_it_is_over_when_training_goes_on_in_train_mode(self, story, falling):
        told = story().losses(falling(40)).checks(falling(40), range(41, 81)).losses(falling(20), range(81, 101))
        assert told.find(LeftTrainMode()) == []


class TestTrainEvalMismatch:
    @staticmethod
    def norms(story, losses, variance=1.0, mean=0.1, steps=None):
        told = story({"fc0": "Linear", "bn": "BatchNorm1d", "fc1": "Linear"}).losses(losses)
        steps = np.arange(10, len(losses) + 1, 10) if steps is None else steps
        return told.add(signals.BATCH_NORM_VARIANCE, steps, bn=variance).add(signals.BATCH_NORM_MEAN, steps, bn=mean)

    @pytest.mark.parametrize("off", [{"variance": 20.0}, {"variance": 0.05}, {"mean": 3.0}])
    def test_eval_mode_is_worse_and_its_statistics_are_off(self, story, falling, off):
        told = self.norms(story, falling(300), **off).checks([1.0, 1.8, 1.7], [100, 200, 300])
        found = told.one(TrainEvalMismatch())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("bn", 200, 200, "warning")

    @pytest.mark.parametrize("steps", [range(1, 8), [*range(1, 8), 250]])
    def test_statistics_of_the_first_steps_tell_nothing_about_later_losses(self, story, falling, steps):
        told = self.norms(story, falling(300), variance=20.0, steps=steps).checks([2.0, 1.8, 1.7], [100, 200, 300])
        assert told.find(TrainEvalMismatch()) == []

    @pytest.mark.parametrize(("mean", "signal"), [(0.1, signals.BATCH_NORM_VARIANCE), (9.0, signals.BATCH_NORM_MEAN)])
    def test_the_number_and_the_evidence_are_of_the_layer_that_is_named(self, story, falling, mean, signal):
        told = self.norms(story, falling(300), variance=5.0, mean=mean).checks([1.0, 1.8, 1.7], [100, 200, 300])
        told.facts.layers["worse"] = "BatchNorm1d"
        steps = np.arange(10, 301, 10)
        told.add(signals.BATCH_NORM_VARIANCE, steps, worse=90.0).add(signals.BATCH_NORM_MEAN, steps, worse=50.0)
        found = told.one(TrainEvalMismatch())
        number = "variance ratio 5" if mean < 1 else "means are 9 standard deviations apart"
        assert f"In bn the statistics that are used in eval mode are not those of the batches ({number})" in (
            found.explanation
        )
        (shown,) = found.evidence
        value = 5.0 if signal == signals.BATCH_NORM_VARIANCE else mean
        assert (found.layer, shown.place, shown.series, shown.values[-1]) == ("bn", "bn", signal, value)

    def test_a_gap_with_right_statistics_is_something_else(self, story, falling):
        told = self.norms(story, falling(300), variance=1.5).checks([2.0, 1.8, 1.7], [100, 200, 300])
        assert told.find(TrainEvalMismatch()) == []

    def test_losses_may_be_negative(self, story):
        for last, is_bad in ((-1.9, False), (0.5, True)):
            told = self.norms(story, np.linspace(1.0, -2.0, 300), variance=20.0).checks(
                [0.5, -0.5, last], [100, 200, 300]
            )
            assert bool(told.checks([last], [301]).find(TrainEvalMismatch())) == is_bad

    def test_statistics_that_lag_behind_without_a_gap_are_fine(self, story, falling):
        told = self.norms(story, falling(300), variance=20.0).checks([0.9, 0.4, 0.15], [100, 200, 300])
        assert told.find(TrainEvalMismatch()) == []

    def test_off_without_batch_norm(self, story, falling):
        told = story().losses(falling(300)).checks([2.0, 1.8, 1.7], [100, 200, 300])
        assert told.find(TrainEvalMismatch()) == []
        assert "train_eval_mismatch" in switched_off(told.history)

    def test_thresholds_can_be_changed(self, story, falling):
        told = self.norms(story, falling(300), variance=20.0).checks([2.0, 1.8, 1.7], [100, 200, 300])
        for symptom in (TrainEvalMismatch(factor=100), TrainEvalMismatch(share=2), TrainEvalMismatch(variance=50)):
            assert told.find(symptom) == []
