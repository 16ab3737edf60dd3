"""What goes wrong in optimizer steps, and the healthy runs that look like it."""

import math

import numpy as np
import pytest

from monitorch.diagnosis import signals, switched_off
from monitorch.diagnosis.history import Parameter
from monitorch.diagnosis.symptoms import (
    NoisyGradient,
    NoProgress,
    NoUpdate,
    Oscillation,
    OverRegularised,
    StaleGradient,
    StepTooLarge,
)

NAN = np.nan


class TestNoUpdate:
    @staticmethod
    def steps(story, changed=(1, 1, 1), gradients=(1.0, 1.0, 1.0), rates=None, **facts):
        """Weights, and biases that change and have gradients."""
        told = story(**facts).weights(signals.CHANGED, *changed).weights(signals.GRADIENT, *gradients)
        for signal in (signals.CHANGED, signals.GRADIENT):
            told.add(signal, fc0__bias=1.0, fc1__bias=1.0, fc2__bias=1.0)
        return told if rates is None else told.weights(signals.RATE, *rates)

    def test_a_weight_that_no_optimizer_has(self, story):
        told = self.steps(story, changed=(1, 0, 1))
        told.facts.parameters["fc1.weight"].optimized = False
        found = told.one(NoUpdate())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc1", 1, 3, "warning")
        assert found.explanation == "fc1 gets gradients but does not change. No optimizer has it."
        assert (found.remedy.action, found.remedy.arguments) == ("add_to_optimizer", {"parameters": ["fc1.weight"]})

    @pytest.mark.parametrize(
        ("hidden", "said"),
        [
            (["scale"], "scale gets a gradient, but nothing trains or saves it: it is in a plain list"),
            (["a", "b"], "a and another get gradients, but nothing trains or saves them: they are in a plain list"),
            (["a"] * 1201, "a and 1,200 others get gradients"),
        ],
    )
    def test_tensors_that_torch_does_not_know(self, story, hidden, said):
        told = self.steps(story)
        told.facts.hidden = hidden
        found = told.one(NoUpdate())
        assert (found.layer, found.step, found.severity) == (None, 1, "warning")
        assert found.explanation.startswith(said)
        assert "nn.ModuleList" in found.remedy.text

    def test_the_first_observed_step_counts_although_nothing_is_known_of_the_one_before(self, story):
        told = self.steps(story, changed=([NAN, 1, 1, 1], [NAN, 0, 0, 0], [NAN, 1, 1, 1]), gradients=([1.0] * 4,) * 3)
        told.facts.parameters["fc1.weight"].optimized = False
        assert (told.one(NoUpdate()).step, told.one(NoUpdate()).detected_at) == (1, 3)

    def test_layer_step_and_evidence_are_those_of_the_first(self, story):
        late = np.where(np.arange(20) < 10, 1.0, 0.0)
        told = self.steps(story, changed=(late, 1, 0))
        for name in ("fc0.weight", "fc2.weight"):
            told.facts.parameters[name].optimized = False
        found = told.one(NoUpdate())
        assert (found.layer, found.step, found.evidence[0].place) == ("fc2", 1, "fc2.weight")
        assert found.explanation.startswith("fc2 and fc0 get gradients")

    def test_a_schedule_that_ends_at_zero_is_named(self, story):
        rate = np.where(np.arange(40) < 5, 0.1, 0.0)
        changed = np.where(rate > 0, 1.0, 0.0)
        told = self.steps(story, (changed,) * 3, (np.ones(40),) * 3, (rate,) * 3)
        found = told.one(NoUpdate())
        assert found.remedy.text == "Look at the schedule: it has taken the learning rate from 0.1 to 0."
        assert (found.step, found.detected_at) == (6, 27)  # a schedule may pause, so it takes a while to be sure

    @pytest.mark.parametrize(
        ("falls_at", "since", "is_found"), [(30, 0, True), (30, 30, True), (80, 80, False), (0, 0, False)]
    )
    def test_a_schedule_that_ends_near_zero_is_named_if_it_stays_there_for_long(self, story, falls_at, since, is_found):
        rate = np.where(np.arange(100) < falls_at, 0.1, 1e-20)
        changed = np.where(np.arange(100) < max(since, falls_at), 1.0, 0.0)
        told = self.steps(story, (changed,) * 3, (np.ones(100),) * 3, (rate,) * 3)
        if not is_found:
            assert told.find(NoUpdate()) == []
            return
        found = told.one(NoUpdate())
        assert (found.layer, found.step) == ("fc0", falls_at + 1)
        assert found.explanation.endswith("get gradients but do not change. Their updates are lost in rounding.")
        assert found.remedy.text == "Look at the schedule: it has taken the learning rate from 0.1 to 1e-20."

    def test_a_rate_is_given_with_three_digits(self, story):
        told = self.steps(story, changed=(0, 1, 1), gradients=(1.0,) * 3, rates=(0.0, 0.0020000000000000005, 0.1 / 3))
        assert told.one(NoUpdate()).remedy.arguments["lr"] in (0.002, 0.0177, 0.0333)

    def test_since_it_was_taken_away(self, story):
        late = np.where(np.arange(1, 21) < 8, 1, 0)
        told = self.steps(story, changed=(1, late, 1), gradients=(1.0, np.where(late, 1.0, NAN), 1.0))
        told.add(signals.GROUP, fc1__weight=late - 1)
        found = told.one(NoUpdate())
        assert (found.layer, found.step, found.detected_at) == ("fc1", 8, 10)
        assert found.remedy.action == "add_to_optimizer"

    @pytest.mark.parametrize("is_optimized", [True, False])
    def test_gradients_that_end_heal_nothing_that_nobody_trains(self, story, is_optimized):
        gradient = np.where(np.arange(20) < 10, 1.0, 0.0)
        told = self.steps(story, changed=(1, 0, 1), gradients=(1.0, gradient, 1.0), rates=(0.1, 0.1, 0.1))
        told.facts.parameters["fc1.weight"].optimized = is_optimized
        assert [one.layer for one in told.find(NoUpdate())] == ([] if is_optimized else ["fc1"])

    def test_a_group_whose_rate_stays_zero(self, story):
        changed, rate = np.zeros(40), np.zeros(40)
        told = story().weights(signals.CHANGED, changed, 1.0 + changed, 1.0 + changed)
        told.weights(signals.GRADIENT, *[changed + 1.0] * 3).weights(signals.RATE, rate, rate + 0.1, rate + 0.1)
        found = told.one(NoUpdate())
        assert (found.layer, found.step, found.detected_at) == ("fc0", 1, 3)
        assert (found.remedy.action, found.remedy.arguments) == (
            "set_group_lr",
            {"parameters": ["fc0.weight"], "lr": 0.1},
        )

    def test_updates_that_are_lost_in_rounding(self, story):
        told = self.steps(story, changed=(0, 1, 1), rates=(1e-3,) * 3).weights(signals.UPDATE_RATIO, 0.0, 1e-3, 1e-3)
        assert told.one(NoUpdate()).remedy.action == "scale_lr"

    def test_a_bias_before_a_normalisation_gets_rounding_only(self, story):
        told = story().weights(signals.CHANGED, 1, 1, 1).weights(signals.GRADIENT, 1.0, 1.0, 1.0)
        told.add(signals.CHANGED, fc1__bias=0.0).add(signals.GRADIENT, fc1__bias=1e-9)
        assert told.find(NoUpdate()) == []

    def test_frozen_parameters_may_stay(self, story):
        told = self.steps(story, changed=(0, 1, 1))
        told.facts.parameters["fc0.weight"].trainable = False
        assert told.find(NoUpdate()) == []

    def test_those_without_gradients_are_another_matter(self, story):
        assert self.steps(story, changed=(0, 1, 1), gradients=(0.0, 1.0, 1.0)).find(NoUpdate()) == []
        assert self.steps(story, changed=(0, 1, 1), gradients=(None, 1.0, 1.0)).find(NoUpdate()) == []

    @pytest.mark.parametrize("idle", [slice(None, 10), slice(-10, None)], ids=["warm-up", "end of a schedule"])
    def test_a_rate_may_be_zero_for_a_while(self, story, idle):
        rate = np.full(40, 0.1)
        rate[idle] = 0.0
        changed = (rate > 0).astype(float)
        told = story().weights(signals.CHANGED, changed, changed, changed).weights(signals.RATE, rate, rate, rate)
        told.weights(signals.GRADIENT, *[np.ones(40)] * 3)
        assert told.find(NoUpdate()) == []

    def test_steps_that_are_too_small_for_all_are_another_symptom(self, story):
        told = self.steps(story, changed=(0, 0, 0), rates=(1e-12,) * 3)
        assert told.weights(signals.UPDATE_RATIO, 1e-9, 1e-9, 1e-9).find(NoUpdate()) == []

    def test_two_steps_are_too_few(self, story):
        told = story().weights(signals.CHANGED, [0, 0], [1, 1], [1, 1]).weights(signals.GRADIENT, *[[1.0, 1.0]] * 3)
        told.facts.parameters["fc0.weight"].optimized = False
        assert told.find(NoUpdate()) == []
        assert told.one(NoUpdate(steps=2)).detected_at == 2

    def test_one_that_changes_again_is_fine(self, story):
        assert self.steps(story, changed=([0] * 10 + [1] * 10, 1, 1)).find(NoUpdate()) == []

    def test_thresholds_can_be_changed(self, story):
        told = self.steps(story, changed=(0, 1, 1), gradients=(1e-3, 1.0, 1.0))
        told.facts.parameters["fc0.weight"].optimized = False
        assert len(told.find(NoUpdate())) == 1
        assert told.find(NoUpdate(gradient=0.01)) == []
        still = self.steps(story, changed=(0, 0, 0), rates=(0.0, 0.0, 0.0))
        assert still.find(NoUpdate()) == still.find(NoUpdate(idle_rate=19)) == []
        assert still.one(NoUpdate(idle_rate=5)).step == 5

    def test_off_without_checksums(self, story):
        told = story().weights(signals.GRADIENT, 1.0, 1.0, 1.0)
        assert told.find(NoUpdate()) == []
        assert "no_update" in switched_off(told.history)


class TestStaleGradient:
    def test_gradients_that_are_never_empty(self, story):
        told = story().weights(signals.GRADIENT_EMPTY, *[[1.0] + [0.0] * 19] * 3)
        found = told.one(StaleGradient())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 2, 5, "error")
        assert found.remedy.action == "zero_grad"

    def test_those_of_one_layer(self, story):
        found = story().weights(signals.GRADIENT_EMPTY, 0.0, 1.0, 1.0).one(StaleGradient())
        assert found.layer == "fc0"

    @pytest.mark.parametrize(
        "empty",
        [
            (1.0, 1.0, 1.0),  # accumulation is emptied at its first pass
            ([0.0, 1.0] * 10, 1.0, 1.0),  # a GAN: the other optimizer's backward comes between
            ([0.0] * 10 + [1.0] * 10, 1.0, 1.0),
        ],
    )
    def test_healthy_ones(self, story, empty):
        assert story().weights(signals.GRADIENT_EMPTY, *empty).find(StaleGradient()) == []

    def test_parameters_that_no_optimizer_has_are_never_emptied(self, story):
        told = story().weights(signals.GRADIENT_EMPTY, 0.0, 1.0, 1.0)
        told.facts.parameters["fc0.weight"].optimized = False
        assert told.find(StaleGradient()) == []

    def test_layers_that_died_do_not_end_it(self, story):
        """Their gradients are 0, and so empty, although nobody clears them."""
        alive = np.arange(40) < 20
        told = story().weights(signals.GRADIENT_EMPTY, 0.0, *[np.where(alive, 0.0, 1.0)] * 2)
        told.weights(signals.GRADIENT, 1.0, *[np.where(alive, 1.0, 0.0)] * 2)
        found = told.one(StaleGradient())
        assert (found.layer, found.step, found.resolved_at) == (None, 1, None)
        assert found.explanation.startswith("In 100 % of the observed steps")

    def test_layers_that_never_get_a_gradient_are_not_blamed(self, story):
        told = story().weights(signals.GRADIENT_EMPTY, 1.0, 1.0, 1.0).weights(signals.GRADIENT, 0.0, 0.0, 0.0)
        assert told.find(StaleGradient()) == []

    def test_less_harm_in_a_run_that_learns(self, story, falling):
        told = story().weights(signals.GRADIENT_EMPTY, 0.0, 0.0, 0.0).losses(falling())
        assert told.one(StaleGradient()).severity == "warning"

    def test_thresholds_can_be_changed(self, story):
        told = story().weights(signals.GRADIENT_EMPTY, *[[0.0, 0.0, 0.0, 1.0] * 5] * 3)
        assert told.find(StaleGradient()) == []
        assert len(told.find(StaleGradient(share=0.5))) == 1
        assert told.find(StaleGradient(share=0.5, steps=21)) == []


class TestStepTooLarge:
    def test_large_updates_in_half_of_the_weights(self, story):
        told = story().weights(signals.UPDATE_RATIO, 0.3, 0.3, 0.01)
        found = told.one(StepTooLarge())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 5, "info")
        assert (found.remedy.action, found.remedy.arguments) == ("scale_lr", {"factor": 0.03})
        assert found.explanation.startswith("A step changed weights by 30 % of their size, at step 1.")

    def test_the_largest_step_is_told_with_its_step(self, story):
        ratio = np.where(np.arange(1, 41) < 8, 0.3, 1e-11)
        ratio[3] = 2.25
        found = story().weights(signals.UPDATE_RATIO, ratio, ratio, ratio).one(StepTooLarge())
        assert found.explanation.startswith("A step changed weights by 225 % of their size, at step 4.")

    def test_one_weight_that_moves_far_more_than_the_others_is_named(self, story):
        stuck = story().weights(signals.UPDATE_RATIO, 0.01, 0.01, 0.9, steps=np.arange(1, 61)).losses(np.full(60, 2.0))
        found = stuck.one(StepTooLarge())
        assert "at step 5; the largest was 90 %, of fc2.weight." in found.explanation
        assert (found.evidence[0].place, found.evidence[0].values[0]) == ("fc2.weight", 0.9)
        assert found.remedy.action == "scale_lr"

    @pytest.mark.parametrize(
        ("rates", "remedy"),
        [((1e-3, 1e-3, 1.0), "set_group_lr"), ((1e-3, 1e-3, 5e-3), "scale_lr"), ((1.0, 1.0, 1.0), "scale_lr")],
    )
    def test_a_group_whose_rate_is_far_above_the_others_is_named(self, story, rates, remedy):
        stuck = story().weights(signals.UPDATE_RATIO, 0.01, 0.01, 0.9, steps=np.arange(1, 61)).losses(np.full(60, 2.0))
        found = stuck.weights(signals.RATE, *rates, steps=np.arange(1, 61)).one(StepTooLarge())
        assert found.remedy.action == remedy
        if remedy == "set_group_lr":
            said = "Lower the learning rate of the group of fc2.weight: it was 1 at step 5, and 0.001 elsewhere."
            assert (found.remedy.text, found.remedy.arguments["lr"]) == (said, 1e-3)
            assert found.remedy.arguments["parameters"] == ["fc2.weight"]

    @pytest.mark.parametrize(("growth", "severity"), [(1.2, "info"), (5.0, "warning")])
    def test_first_steps_may_be_large_if_they_do_nothing(self, story, falling, growth, severity):
        ratio = np.where(np.arange(1, 121) < 8, 0.3, 0.01)
        told = story().weights(signals.UPDATE_RATIO, ratio, ratio, ratio).losses(falling(120, 2.0, 1.5))
        found = told.weights(signals.WEIGHT, *[[1.0, growth]] * 3, steps=[0, 120]).one(StepTooLarge())
        assert (found.severity, found.resolved_at) == (severity, 8 if severity == "info" else None)
        assert ("nothing that was learned lasts" in found.explanation) == (severity != "info")

    def test_one_weight_that_is_replaced_all_the_time_is_enough_for_a_run_that_does_not_learn(self, story, falling):
        ratios = 0.5, 0.01, 0.01
        stuck = story().weights(signals.UPDATE_RATIO, *ratios, steps=np.arange(1, 61)).losses(np.full(60, 2.0))
        found = stuck.one(StepTooLarge())
        assert (found.step, found.severity, found.resolved_at) == (1, "error", None)
        learning = story().weights(signals.UPDATE_RATIO, *ratios, steps=np.arange(1, 61)).losses(falling(60, 2.0, 0.2))
        assert learning.find(StepTooLarge()) == []
        small = story().weights(signals.UPDATE_RATIO, 0.2, 0.01, 0.01, steps=np.arange(1, 61))
        assert small.losses(np.full(60, 2.0)).find(StepTooLarge()) == []

    def test_embeddings_that_begin_small_may_grow(self, story, falling):
        layers = {"words": "Embedding", "others": "Embedding"}
        told = story(layers).losses(falling(100, 0.7, 0.4))
        for name in layers:
            told.facts.parameters[f"{name}.weight"] = Parameter(name, (200, 16), "float32")
        ratios = 0.5 / np.arange(1, 101)
        told.add(signals.UPDATE_RATIO, words__weight=ratios, others__weight=ratios)
        told.add(signals.WEIGHT, [0, 50, 100], words__weight=[1.0, 4.0, 5.0], others__weight=[0.0, 4.0, 5.0])
        assert told.find(StepTooLarge()) == []

    @pytest.mark.parametrize(("last", "steps"), [(0.4, []), (0.72, [31])])
    def test_weights_that_began_small_count_in_full_once_they_have_grown(self, last, steps, story, flat):
        told = story().losses(flat(50)).weights(signals.UPDATE_RATIO, *[np.full(50, 0.15)] * 3)
        told.weights(signals.WEIGHT, *[[0.09, 0.18, 0.36, last]] * 3, steps=[0, 10, 20, 30])
        assert [one.step for one in told.find(StepTooLarge())] == steps

    def test_a_weight_that_begins_at_zero_may_grow_beside_another_of_its_layer(self, story, flat):
        told = story({"fc": "Linear"}).losses(flat(100))
        for name, layer in (("fc.a", "fc"), ("fc.b", "fc"), ("token", "")):  # a correction of low rank, a class token
            told.facts.parameters[name] = Parameter(layer, (8, 8), "float32")
        told.facts.parameters["fc.weight"].trainable = False
        growing = 0.5 / np.arange(1, 101)
        told.add(signals.UPDATE_RATIO, fc__a=np.full(100, 1e-4), fc__b=growing, token=growing)
        told.add(signals.WEIGHT, [0, 50, 100], fc__a=[3.0] * 3, fc__b=[0.0, 0.01, 0.02], token=[0.0, 0.01, 0.02])
        assert told.find(StepTooLarge()) == []

    def test_since_a_step(self, story):
        ratio = np.where(np.arange(1, 21) < 10, 0.01, 0.3)
        found = story().weights(signals.UPDATE_RATIO, ratio, ratio, ratio).one(StepTooLarge())
        assert (found.step, found.detected_at) == (10, 12)

    def test_losses_that_rise_for_good(self, story):
        losses = np.concatenate([np.full(20, 1.0), np.geomspace(1.0, 1e4, 30), np.full(30, 1e4)])
        found = story().losses(losses).one(StepTooLarge())
        assert found.severity == "error"
        assert 20 <= found.step <= 23
        assert found.step < found.detected_at <= 32
        assert "The loss rose from 1 to 10,000." in found.explanation

    def test_losses_that_explode_before_ten_are_known(self, story):
        losses = [110.0, 100.0, 5e3, 3e5, 1e9, *[NAN] * 20]
        found = story().losses(losses).one(StepTooLarge())
        assert (found.step, found.detected_at, found.severity) == (3, 5, "error")
        assert "The loss rose from 110 to 1.0e+09." in found.explanation
        for healthy in ([110.0, 100.0, 90.0, 80.0, 1e3, *[NAN] * 20], [110.0, NAN, 1e9, NAN, 1.0], losses[:5]):
            assert story().losses(healthy).find(StepTooLarge()) == []

    @pytest.mark.parametrize("is_sum", [True, False])
    def test_a_loss_that_is_a_sum_is_named(self, story, is_sum):
        told = story(loss_is_sum=is_sum).losses(np.full(20, 64.0)).weights(signals.UPDATE_RATIO, 0.5, 0.5, 0.5)
        assert ("The loss is a sum over the batch" in told.one(StepTooLarge()).remedy.text) == is_sum

    @pytest.mark.parametrize(("mean", "std", "is_told"), [(5e4, 177.0, True), (2.0, 0.5, False), (0.0, 1.0, False)])
    def test_targets_that_are_far_from_zero_make_steps_large(self, mean, std, is_told, story):
        told = story(loss_fn="MSELoss").losses(np.full(20, 64.0)).weights(signals.UPDATE_RATIO, 0.5, 0.5, 0.5)
        told.add(signals.LOSS_INPUT_MEAN, target=mean).add(signals.LOSS_INPUT_STD, target=std)
        advice = told.one(StepTooLarge()).remedy.text
        assert ("Give targets mean 0" in advice) == is_told
        assert advice.startswith("Lower the learning rate")

    def test_norms_that_grow_between_observed_steps(self, story):
        told = story().weights(signals.WEIGHT, *[[1.0, 1.0, 50.0]] * 3, steps=[1, 11, 21])
        found = told.one(StepTooLarge())
        assert (found.step, found.detected_at) == (12, 21)

    def test_norms_that_grow_after_an_observed_step_that_was_large(self, story):
        told = story().weights(signals.WEIGHT, *[[1.0, 1.0, 50.0]] * 3, steps=[1, 11, 21])
        ratio = np.array([0.3, 0.01, 0.01, 0.01, 0.3, 0.3, 0.01])
        told.weights(signals.UPDATE_RATIO, ratio, ratio, ratio, steps=[2, 3, 5, 7, 9, 11, 21])
        assert (told.one(StepTooLarge()).step, told.one(StepTooLarge()).detected_at) == (9, 21)

    def test_norms_that_somebody_else_has_set(self, story):
        told = story().weights(signals.WEIGHT, *[[1.0, 1.0, 50.0]] * 3, steps=[1, 11, 21])
        assert told.weights(signals.UPDATE_RATIO, *[np.full(20, 1e-3)] * 3).find(StepTooLarge()) == []

    @pytest.mark.parametrize(
        "ratios",
        [
            (0.09, 0.09, 0.09),
            (0.5, 0.01, 0.01),  # one small layer
            ([0.5] + [0.01] * 19,) * 3,  # the first step of Adam
            (NAN, NAN, 0.01),  # LoRA's B starts at 0
        ],
    )
    def test_healthy_updates(self, story, ratios):
        assert story().weights(signals.UPDATE_RATIO, *ratios).find(StepTooLarge()) == []

    @pytest.mark.parametrize("optimizers", [1, 2])
    def test_healthy_losses(self, story, optimizers):
        stream = np.random.default_rng(0)
        rising = np.concatenate([np.full(20, 1.0), np.full(60, 20.0)])
        heavy = np.exp(stream.standard_t(3, size=100))
        back = np.concatenate([np.full(20, 1.0), np.full(30, 50.0), np.full(30, 0.5)])
        told = [story(optimizers=optimizers).losses(losses) for losses in (heavy, back, stream.normal(size=100))]
        assert [each.find(StepTooLarge()) for each in told] == [[], [], []]
        gan = story(optimizers=optimizers).losses(rising)  # of two aims: one may well rise
        assert len(gan.find(StepTooLarge())) == (optimizers == 1)

    def test_thresholds_can_be_changed(self, story):
        told = story().weights(signals.UPDATE_RATIO, 0.3, 0.3, 0.01)
        assert told.find(StepTooLarge(ratio=0.4)) == []
        assert told.find(StepTooLarge(layers=0.8)) == []
        rising = story().losses(np.concatenate([np.full(20, 1.0), np.full(60, 20.0)]))
        assert rising.find(StepTooLarge(rise=30)) == []


class TestNoProgress:
    @staticmethod
    def small(story, flat, ratio=1e-6, cosine=0.9, rate=1e-8, **facts):
        told = story(**facts).losses(flat(100)).weights(signals.UPDATE_RATIO, *[np.full(100, ratio)] * 3)
        noise = 0.2 * np.random.default_rng(0).normal(size=100)
        told.weights(signals.GRADIENT_COSINE, *[cosine + noise] * 3)
        return told.weights(signals.RATE, *[np.broadcast_to(rate, 100)] * 3)

    def test_steps_that_are_too_small(self, story, flat):
        found = self.small(story, flat).one(NoProgress())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 5, "error")
        assert (found.remedy.action, found.remedy.arguments) == ("scale_lr", {"factor": 10000.0})
        assert "0.1 to 1 %" in found.remedy.text

    def test_a_schedule_that_has_taken_the_rate_to_nothing_is_named(self, story, flat):
        found = self.small(story, flat, rate=np.geomspace(1e-3, 1e-30, 100)).one(NoProgress())
        assert found.remedy.text == "Look at the schedule: it has taken the learning rate from 0.001 to 1e-30."

    def test_small_steps_of_long_ago_tell_nothing_about_now(self, story, flat):
        told = self.small(story, flat)
        told.losses(flat(300), np.arange(101, 401))
        assert "gradients keep pointing" not in told.one(NoProgress()).explanation

    @staticmethod
    def of_targets(story, losses, mean=250.0, **facts):
        told = story(**{"loss_fn": "MSELoss", **facts}).losses(losses)
        return told.add(signals.LOSS_INPUT_MEAN, target=mean).add(signals.LOSS_INPUT_STD, target=5.0)

    def test_a_loss_that_falls_but_is_far_above_that_of_always_saying_the_same(self, story, falling):
        found = self.of_targets(story, falling(200, 62500.0, 4000.0)).one(NoProgress())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 150, "warning")
        assert "Targets are about 250, give or take 5" in found.explanation
        assert found.remedy.text.startswith("Give targets mean 0")
        assert found.evidence[0].threshold == 250.0

    def test_outputs_that_are_too_large_need_no_other_targets(self, story, falling):
        found = self.of_targets(story, falling(200, 62500.0, 4000.0), mean=0.0).one(NoProgress())
        assert "Lower the learning rate" in found.remedy.text

    @pytest.mark.parametrize(
        ("losses", "facts"),
        [
            ((200, 62500.0, 200.0), {}),  # it has come near
            ((140, 62500.0, 4000.0), {}),  # so far
            ((200, 62500.0, 4000.0), {"loss_fn": "HuberLoss"}),  # what a constant gives is not known
            ((200, 62500.0, 4000.0), {"since": 1000}),
            ((200, 62500.0, 4000.0), {"optimizers": 2}),
        ],
    )
    def test_a_loss_that_is_on_its_way_is_fine(self, story, falling, losses, facts):
        assert self.of_targets(story, falling(*losses), **facts).find(NoProgress()) == []

    def test_how_far_is_far_can_be_changed(self, story, falling):
        assert self.of_targets(story, falling(200, 62500.0, 4000.0)).find(NoProgress(far=200)) == []

    @pytest.mark.parametrize("factor", [1e6, 1e3])
    def test_a_rate_that_fell_at_once_goes_back(self, story, flat, factor):
        rate = np.where(np.arange(100) < 5, 0.1, 0.1 / factor)
        found = self.small(story, flat, rate=rate).one(NoProgress())
        assert found.remedy.arguments == {"factor": factor}

    def test_gradients_of_noisy_batches_agree_on_average(self, story, flat):
        assert self.small(story, flat, cosine=0.15).one(NoProgress()).severity == "error"

    def test_a_rate_that_fell_after_some_steps(self, story, falling, flat):
        begin = np.where(np.arange(200) < 40, 1e-2, 1e-7)
        told = story().losses(np.concatenate([falling(40, 2.0, 1.5), flat(160, 1.5)]))
        told.weights(signals.UPDATE_RATIO, *[begin] * 3).weights(signals.GRADIENT_COSINE, *[np.full(200, 0.8)] * 3)
        found = told.one(NoProgress())
        assert (found.step, found.detected_at, found.severity) == (41, 43, "warning")

    def test_a_model_that_was_good_before_need_not_move(self, story, flat):
        told = self.small(story, lambda count: flat(count, 0.1), loss_fn="CrossEntropyLoss", target_counts=[50, 50])
        assert told.find(NoProgress()) == []

    def test_a_rate_that_warms_up_is_meant_to_be_small(self, story, flat):
        assert self.small(story, flat, rate=np.linspace(1e-9, 1e-7, 100)).find(NoProgress()) == []

    def test_a_rate_that_went_to_zero_at_the_end_is_meant_to(self, story, falling):
        ratio = np.geomspace(1e-2, 1e-7, 200)
        told = story().losses(falling(200)).weights(signals.UPDATE_RATIO, ratio, ratio, ratio)
        assert told.find(NoProgress()) == []

    @pytest.mark.parametrize("told", [{"ratio": 1e-3}, {"cosine": 0.0}, {"optimizers": 2}, {"since": 50}])
    def test_other_reasons_for_a_flat_loss(self, story, flat, told):
        assert self.small(story, flat, **told).find(NoProgress()) == []

    def test_frozen_layers_beside_one_that_moves(self, story, flat):
        told = story().losses(flat()).weights(signals.UPDATE_RATIO, 0.0, 0.0, 1e-3)
        assert told.find(NoProgress()) == []

    def test_a_plateau_before_anything_was_learned(self, story, flat):
        told = story(loss_fn="CrossEntropyLoss", target_counts=[50, 50]).losses(flat(300, math.log(2)))
        found = told.one(NoProgress())
        assert (found.step, found.detected_at, found.severity, found.confidence) == (1, 150, "warning", 0.6)
        assert "0.693 for a constant output" in found.explanation

    def test_nothing_that_has_a_weight_is_trained(self, story, flat):
        told = self.small(story, flat).losses(flat(200), np.arange(101, 301))
        for name, own in told.facts.parameters.items():
            own.trainable = name == "fc2.bias"
        assert told.one(NoProgress()).remedy.text == (
            "Look whether more should be trained: 96 % of the model has requires_grad=False."
        )

    def test_a_plateau_after_a_schedule_took_the_rate_away(self, story, flat):
        for steps, is_named in ((300, True), (150, False)):  # in the last half it may be intended
            told = story().losses(flat(steps)).weights(signals.UPDATE_RATIO, *[np.full(100, 1e-3)] * 3)
            told.weights(signals.RATE, *[np.where(np.arange(100) < 80, 1e-2, 1e-5)] * 3)
            assert ("Look at the schedule" in told.one(NoProgress()).remedy.text) == is_named

    def test_a_plateau_far_from_targets_that_are_far_from_0(self, story, flat):
        told = self.of_targets(story, flat(200, 250.0), loss_fn="SmoothL1Loss")
        assert told.one(NoProgress()).remedy.text.startswith("Give targets mean 0 and standard deviation 1")

    def test_a_plateau_of_noisy_losses(self, story, falling):
        noise = 1 + 0.2 * np.random.default_rng(0).normal(size=300)
        assert "stopped falling" in self.of_targets(story, 150.0 * noise).one(NoProgress()).explanation
        assert story().losses(150.0 * noise).find(NoProgress()) == []  # that may be a game, whose loss means little
        low = np.concatenate([np.full(100, 10.0), np.full(200, 150.0)]) * noise
        assert not any("stopped falling" in one.explanation for one in self.of_targets(story, low).find(NoProgress()))

    def test_a_plateau_begins_where_the_loss_stops_falling(self, story, falling, flat):
        told = story(loss_fn="CrossEntropyLoss", target_counts=[50, 50])
        losses = np.concatenate([falling(100, 5.0, math.log(2)), flat(500, math.log(2))])
        found = told.losses(losses).one(NoProgress())
        assert 99 <= found.step <= 101
        assert found.detected_at == found.step + 149

    def test_a_plateau_after_much_was_learned_is_the_end(self, story, falling, flat):
        losses = np.concatenate([falling(100), flat(300, 0.1)])
        assert story().losses(losses).find(NoProgress()) == []

    @pytest.mark.parametrize(("after", "is_lost"), [(100, True), (29, False)])
    def test_what_was_learned_is_lost(self, story, falling, flat, after, is_lost):
        losses = np.concatenate([falling(200, 1.0, 0.1), flat(after, 1.0)])
        told = story(loss_fn="MSELoss", batch=32.0).losses(losses)
        told.add(signals.LOSS_INPUT_MEAN, target=0.0).add(signals.LOSS_INPUT_STD, target=1.0)
        found = told.find(NoProgress())
        assert [(one.step, one.detected_at, one.severity) for one in found] == [(201, 230, "error")] * is_lost
        assert all("constant output would give 1. Nothing is left" in one.explanation for one in found)

    def test_a_loss_that_is_better_than_guessing_is_not_lost(self, story, falling, flat):
        told = story(loss_fn="MSELoss", batch=32.0).losses(np.concatenate([falling(200, 1.0, 0.1), flat(100, 0.6)]))
        told.add(signals.LOSS_INPUT_MEAN, target=0.0).add(signals.LOSS_INPUT_STD, target=1.0)
        assert told.find(NoProgress()) == []

    def test_149_steps_are_no_plateau(self, story, flat):
        assert story().losses(flat(149)).find(NoProgress()) == []

    def test_thresholds_can_be_changed(self, story, flat):
        assert self.small(story, flat).find(NoProgress(ratio=1e-7)) == []
        assert self.small(story, flat).find(NoProgress(cosine=500)) == []
        assert len(story().losses(flat(100)).find(NoProgress(plateau=90))) == 1

    @pytest.mark.parametrize("cosine", [0.9, 0.0])
    def test_a_limit_of_the_elements_of_gradients_is_named(self, story, flat, cosine):
        told = self.small(story, flat, cosine=cosine)
        told.weights(signals.GRADIENT, np.full(100, 8e-6), np.full(100, 8e-6), 4e-6 * np.linspace(0.5, 1.5, 100))
        found = told.one(NoProgress())
        assert "each element of a gradient is clipped at 1.0e-06" in found.explanation
        assert "the same way" not in found.explanation
        assert found.remedy.text.startswith("Clip gradients at a larger value")

    def test_steps_that_are_lost_in_rounding_have_no_size(self, story, flat):
        assert "too small to change most weights" in self.small(story, flat, ratio=0.0).one(NoProgress()).explanation

    @staticmethod
    def rising(story, cosine, empty=1.0, last=1e4, noise=0.0):
        losses = np.concatenate([np.full(20, 2.0), np.geomspace(2.0, last, 180)])
        told = story().losses(losses * np.exp(noise * np.random.default_rng(0).normal(size=200)))
        told.weights(signals.GRADIENT_COSINE, *[np.full(200, cosine)] * 3)
        told.weights(signals.UPDATE_RATIO, *[np.full(200, 0.03)] * 3)
        return told.weights(signals.GRADIENT_EMPTY, *[np.full(200, empty)] * 3)

    def test_steps_uphill(self, story):
        told = self.rising(story, 0.9)
        found = told.one(NoProgress())
        assert (found.severity, found.remedy.action) == ("error", None)
        assert "so steps go uphill" in found.explanation
        assert found.remedy.text.startswith("Look for a minus before the loss")
        assert told.find(StepTooLarge()) == []

    def test_losses_of_small_batches_rise_in_the_long_run_only(self, story):
        told = self.rising(story, 0.9, last=50.0, noise=0.2)
        assert "so steps go uphill" in told.one(NoProgress()).explanation
        assert told.find(StepTooLarge()) == []

    @pytest.mark.parametrize(("cosine", "empty"), [(-0.3, 1.0), (0.1, 1.0), (0.9, 0.0)])
    def test_gradients_that_turn_round_or_are_never_cleared_are_no_steps_uphill(self, story, cosine, empty):
        told = self.rising(story, cosine, empty)
        assert len(told.find(StepTooLarge())) == 1
        assert not any("uphill" in one.explanation for one in told.find(NoProgress()))

    def test_without_gradients_since_it_rises_no_steps_are_said_to_go_uphill(self, story):
        losses = np.concatenate([np.full(100, 1.0), np.geomspace(1.0, 1e6, 100)])
        told = story().losses(losses)
        for signal, value in (
            (signals.GRADIENT_COSINE, 0.9),
            (signals.UPDATE_RATIO, 0.03),
            (signals.GRADIENT_EMPTY, 1),
        ):
            told.weights(signal, *[np.full(90, value)] * 3)  # later steps were not observed
        assert len(told.find(StepTooLarge())) == 1
        assert not any("uphill" in one.explanation for one in told.find(NoProgress()))

    @pytest.mark.parametrize(("gradient", "is_explained"), [(1e3, True), (1e-3, False)])
    def test_a_loss_that_rises_far_faster_than_steps_can_make_it_has_another_reason(
        self, story, gradient, is_explained
    ):
        told = self.rising(story, 0.9).weights(signals.WEIGHT, *[np.ones(200)] * 3)
        told.weights(signals.GRADIENT, *[np.full(200, gradient)] * 3)
        assert len(told.find(NoProgress())) == is_explained
        told = story().losses(np.concatenate([np.full(20, 2.0), np.geomspace(2.0, 1e4, 180)]))
        told.weights(signals.UPDATE_RATIO, *[np.full(200, 1e-3)] * 3).weights(signals.WEIGHT, *[np.ones(200)] * 3)
        told.weights(signals.GRADIENT, *[np.full(200, 30 * gradient)] * 3)
        assert len(told.find(StepTooLarge())) == is_explained

    @staticmethod
    def falling_below(story, last=-1e4, growth=100.0):
        told = story().losses(np.concatenate([np.full(20, -1.0), -np.geomspace(1.0, -last, 180)]))
        return told.add(signals.OUTPUT, fc0=1.0, fc2=np.geomspace(1.0, growth, 200))

    def test_a_loss_that_has_no_lowest_value(self, story):
        found = self.falling_below(story).one(NoProgress())
        assert (found.step, found.severity) == (1, "error")
        assert "The loss fell from -1 to -6,136" in found.explanation
        assert found.remedy.text.startswith("Look for a minus before the loss")

    def test_a_loss_that_falls_to_nowhere_at_once_has_none_either(self, story):
        told = story().losses(
            np.concatenate([np.full(20, -1.0), -np.geomspace(1.0, 1e20, 20), -np.geomspace(1e20, 1e18, 200)])
        )
        told.add(signals.OUTPUT, fc0=1.0, fc2=np.geomspace(1.0, 1e9, 100))
        assert "It has no lowest value" in told.one(NoProgress()).explanation

    def test_that_it_has_none_stays_true_where_no_more_steps_are_observed(self, story):
        told = self.falling_below(story)
        told.losses(-np.geomspace(1e4, 1e9, 300), np.arange(201, 501))
        assert told.one(NoProgress()).resolved_at is None

    @pytest.mark.parametrize(
        "told",
        [
            {"last": -900.0},
            {"growth": 20.0},  # a reward that rises
        ],
    )
    def test_losses_below_0_that_are_fine(self, story, told):
        assert self.falling_below(story, **told).find(NoProgress()) == []

    def test_how_deep_it_may_fall_can_be_changed(self, story):
        assert self.falling_below(story).find(NoProgress(depth=1e5)) == []

    def test_how_far_it_must_rise_can_be_changed(self, story):
        assert self.rising(story, 0.9).find(NoProgress(rise=1e5)) == []

    def test_targets_that_are_far_off_come_before_a_plateau(self, story, flat):
        found = self.of_targets(story, flat(200, 62500.0)).one(NoProgress())
        assert "Targets are about 250" in found.explanation

    @pytest.mark.parametrize("parts", ["apart", "together"])
    def test_a_limit_of_gradients_that_leaves_hardly_any_step_is_named(self, story, flat, parts):
        noise = np.abs(np.random.default_rng(0).normal(size=(3, 100)))
        clipped = 1e-4 * noise / np.sqrt((noise**2).sum(axis=0))
        steady = np.full((3, 100), 1e-4) * np.linspace(1.0, 1.0001, 100)  # the same batch, and hardly a step
        told = self.small(story, flat).weights(signals.GRADIENT, *(clipped if parts == "apart" else steady))
        found = told.one(NoProgress())
        assert ("clipped to a norm of 1.0e-04" in found.explanation) == (parts == "apart")
        assert found.remedy.text.startswith("Clip gradients at a larger norm") == (parts == "apart")
        assert found.remedy.action == "scale_lr"


class TestOscillation:
    @staticmethod
    def turns(story, cosines, losses):
        return story().weights(signals.GRADIENT_COSINE, *cosines).losses(losses)

    UP_AND_DOWN = np.tile([1.0, 1.2], 50)

    def test_gradients_turn_round_and_the_loss_rises(self, story):
        cosine = np.where(np.arange(1, 51) < 21, 0.2, -0.9)
        found = self.turns(story, [cosine] * 3, self.UP_AND_DOWN).one(Oscillation())
        assert (found.layer, found.step, found.detected_at) == (None, 19, 23)
        assert (found.remedy.action, found.remedy.arguments) == ("scale_lr", {"factor": 0.5})

    def test_only_odd_if_it_still_learns(self, story, falling):
        losses = falling(100) * self.UP_AND_DOWN
        assert self.turns(story, [-0.9] * 3, losses).one(Oscillation()).severity == "info"

    def test_edge_of_stability_with_a_loss_that_falls_is_fine(self, story, falling):
        assert self.turns(story, [-0.9] * 3, falling(100)).find(Oscillation()) == []

    @pytest.mark.parametrize("cosines", [(1.0,) * 3, (-0.9, -0.9, 0.0), ([-0.9, 0.9, 0.9] * 7,) * 3])
    def test_healthy_cosines(self, story, cosines):
        assert self.turns(story, cosines, self.UP_AND_DOWN).find(Oscillation()) == []

    def test_gradients_that_are_not_finite_turn_nowhere(self, story):
        assert self.turns(story, [np.full(50, np.inf)] * 3, self.UP_AND_DOWN).find(Oscillation()) == []
        cosine = np.where(np.arange(1, 51) < 30, -0.9, np.inf)
        assert "(cosine -0.9)" in self.turns(story, [cosine] * 3, self.UP_AND_DOWN).one(Oscillation()).explanation

    def test_thresholds_can_be_changed(self, story):
        told = self.turns(story, [-0.6] * 3, self.UP_AND_DOWN)
        assert len(told.find(Oscillation())) == 1
        assert told.find(Oscillation(cosine=-0.7)) == []
        assert told.find(Oscillation(rises=0.6)) == []


class TestOverRegularised:
    def test_weights_that_shrink_to_nothing(self, story):
        norm = np.geomspace(1.0, 1e-3, 31)
        found = story().weights(signals.WEIGHT, norm, norm, np.ones(31)).one(OverRegularised())
        assert (found.layer, found.detected_at) == (None, 12)
        assert (found.remedy.action, found.remedy.arguments) == ("scale_weight_decay", {"factor": 0.01})

    def test_weights_that_shrink_from_the_beginning_do_so_since_the_first_step(self, story):
        norm = np.geomspace(1.0, 1e-3, 31)
        told = story().weights(signals.WEIGHT, norm, norm, norm, steps=np.arange(31))  # the first is before training
        found = told.one(OverRegularised())
        assert (found.step, found.detected_at) == (1, 11)

    @pytest.mark.parametrize("last", [(0.05, 1.0, 1.0), (0.2, 0.2, 0.2), (30.0, 30.0, 1.0)])
    def test_one_layer_or_a_little_is_fine(self, story, last):
        norms = [np.geomspace(1.0, end, 20) for end in last]
        assert story().weights(signals.WEIGHT, *norms).find(OverRegularised()) == []

    def test_weights_that_start_at_zero_cannot_shrink(self, story):
        norms = np.array([0.0] + [1e-3] * 19)
        assert story().weights(signals.WEIGHT, norms, norms, norms).find(OverRegularised()) == []

    def test_off_in_a_run_that_goes_on(self, story):
        norm = np.geomspace(1.0, 1e-3, 20)
        told = story(since=9).weights(signals.WEIGHT, norm, norm, norm)
        assert told.find(OverRegularised()) == []
        assert "over_regularised" in switched_off(told.history)

    def test_thresholds_can_be_changed(self, story):
        norm = np.geomspace(1.0, 0.05, 20)
        told = story().weights(signals.WEIGHT, norm, norm, np.ones(20))
        assert told.find(OverRegularised(shrunk=0.01)) == []
        assert told.find(OverRegularised(layers=0.9)) == []


class TestGradientNoise:
    @staticmethod
    def noise(story, losses, cosine=0.02, batch=1.0, **facts):
        told = story(batch=batch, **facts).losses(losses)
        return told.weights(signals.GRADIENT_COSINE, *[np.full(40, cosine)] * 3)

    def test_small_batches_whose_gradients_have_nothing_in_common(self, story, falling, flat):
        found = self.noise(story, flat(150)).one(NoisyGradient())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 30, "warning")
        assert found.confidence < 0.65
        assert self.noise(story, flat(149)).one(NoisyGradient()).severity == "info"  # one sample tells little
        assert self.noise(story, falling()).one(NoisyGradient()).severity == "info"

    @pytest.mark.parametrize(
        "told", [{"batch": 32.0}, {"batch": None}, {"cosine": 0.3}, {"cosine": -0.3}, {"since": 5}]
    )
    def test_healthy_ones(self, story, flat, told):
        assert self.noise(story, flat(), **told).find(NoisyGradient()) == []

    def test_thresholds_can_be_changed(self, story, flat):
        assert self.noise(story, flat()).find(NoisyGradient(cosine=0.01)) == []
        assert self.noise(story, flat()).find(NoisyGradient(batch=0)) == []
