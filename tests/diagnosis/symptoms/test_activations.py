"""What goes wrong in forward passes: each symptom, and the healthy runs that look like it."""

import numpy as np
import pytest

from monitorch.diagnosis import signals
from monitorch.diagnosis.symptoms import (
    AttentionCollapse,
    DeadUnits,
    ExpertCollapse,
    ExplodingSignal,
    RankCollapse,
    SaturatedActivation,
    SymmetricUnits,
)

NAN = np.nan


def change(before, after, at=10, count=20):
    """A number until a step, and another one from then on."""
    return np.where(np.arange(1, count + 1) < at, before, after)


class TestDeadUnits:
    def test_the_first_layer_since_its_outputs_are_zero(self, story):
        told = story().add(signals.DEATH, act0=change(0.1, 1.0, 10), act1=change(0.1, 0.6, 10))
        told.add(signals.ZEROS, act0=change(0.4, 1.0, 7), act1=change(0.4, 0.9, 9))
        found = told.one(DeadUnits())
        assert (found.layer, found.step, found.detected_at) == ("act0", 7, 10)
        assert (found.severity, found.remedy.action, found.remedy.arguments) == (
            "warning",
            "reinit",
            {"layers": ["fc0"]},
        )
        assert found.explanation.startswith("100 % of the units of act0 output 0 for every sample, as in act1.")
        assert found.evidence[0].place == "act0"

    def test_one_that_is_over_tells_the_number_of_its_time(self, story):
        found = story().add(signals.DEATH, act0=change(0.75, 0.1, 10)).one(DeadUnits())
        assert found.resolved_at == 10
        assert found.explanation.startswith("75 % of the units of act0")

    def test_what_was_seen_long_ago_is_no_more_than_an_info(self, story, falling):
        losses = falling(300, 2.0, 1.5)
        for steps, severity in ((range(1, 9), "info"), (range(1, 300), "warning")):
            told = story().add(signals.DEATH, steps, act0=0.8).losses(losses)
            assert told.one(DeadUnits()).severity == severity

    def test_inputs_that_are_the_same_for_every_sample_say_nothing_about_units(self, story):
        told = story().add(signals.DEATH, act0=0.8)
        assert len(told.find(DeadUnits())) == 1
        assert told.add(signals.LAYER_BATCH_SPREAD, fc0=0.0, fc1=0.0, fc2=0.0).find(DeadUnits()) == []

    def test_the_share_that_is_always_a_warning_can_be_changed(self, story):
        told = story().add(signals.DEATH, act0=0.95)
        assert [told.one(DeadUnits(nearly_all=most)).severity for most in (0.99, 0.9)] == ["info", "warning"]

    @pytest.mark.parametrize(("place", "said"), [("act1", "what enters act1 is"), ("fc1", "what comes out of fc1 is")])
    def test_an_activation_that_is_called_as_a_function_has_the_name_of_its_layer(self, story, place, said):
        found = story().add(signals.DEATH, **{place: 1.0}).one(DeadUnits())
        assert found.remedy.text.startswith(f"Initialise fc1 again: {said} never above 0.")

    def test_units_that_are_dead_at_birth_must_be_initialised_again(self, story):
        told = story().add(signals.DEATH, act1=[NAN] * 3 + [1.0] * 10).add(signals.ZEROS, act1=[1.0] * 13)
        found = told.one(DeadUnits())
        assert (found.layer, found.step, found.detected_at) == ("act1", 1, 4)
        assert found.remedy.action == "reinit"
        assert found.remedy.arguments == {"layers": ["fc1"]}

    def test_units_that_large_steps_have_killed_would_die_again(self, story):
        told = story().add(signals.DEATH, act0=change(0.1, 1.0, 10)).add(signals.ZEROS, act0=change(0.4, 1.0, 8))
        told.weights(signals.UPDATE_RATIO, 0.05, 0.06, 0.2)
        assert told.one(DeadUnits()).remedy.action == "scale_lr"

    @pytest.mark.parametrize("kind", ["ReLU", "GELU", "SiLU", "LeakyReLU"])
    @pytest.mark.parametrize("update", [0.001, 0.2])
    def test_an_activation_that_lets_something_through_needs_no_other(self, kind, update, story):
        layers = {"fc0": "Linear", "act0": kind, "fc1": "Linear"}
        told = story(layers).add(signals.DEATH, act0=change(0.1, 1.0, 10)).add(signals.ZEROS, act0=change(0.4, 1.0, 8))
        advice = told.weights(signals.UPDATE_RATIO, update, update).one(DeadUnits()).remedy.text
        assert ("LeakyReLU or GELU" in advice) == (kind == "ReLU")
        assert advice.startswith("Lower the learning rate" if update > 0.1 else "Initialise fc0 again")

    def test_a_relu_that_was_half_zero_before_it_died_was_alive(self, story):
        told = story().add(signals.DEATH, act0=change(0.1, 1.0, 10)).add(signals.ZEROS, act0=change(0.6, 1.0, 8))
        found = told.one(DeadUnits())
        assert (found.step, found.remedy.action) == (8, "reinit")

    def test_half_of_the_units_may_be_dead(self, story):
        assert story().add(signals.DEATH, act0=0.5, act1=0.4).find(DeadUnits()) == []

    def test_zeros_tell_nothing_if_there_were_as_many_before(self, story):
        told = story().add(signals.DEATH, [40, 80, 120], act0=[0.0, 0.0, 0.52])
        found = told.add(signals.ZEROS, range(10, 121, 10), act0=0.53).one(DeadUnits())
        assert (found.step, found.detected_at) == (90, 120)

    def test_zeros_alone_are_sparse_and_not_dead(self, story):
        told = story().add(signals.DEATH, act0=0.0).add(signals.ZEROS, act0=0.9)
        assert told.find(DeadUnits()) == []

    def test_what_lives_again_is_over(self, story):
        told = story().add(signals.DEATH, act0=[0.0] * 5 + [1.0] * 5 + [0.1] * 5)
        found = told.one(DeadUnits())
        assert (found.step, found.resolved_at, found.severity) == (6, 11, "info")

    def test_it_is_an_error_if_nothing_is_learned(self, story, flat, falling):
        dead = {"act0": 0.8}
        assert story().add(signals.DEATH, **dead).losses(flat()).one(DeadUnits()).severity == "error"
        assert story().add(signals.DEATH, **dead).losses(falling()).one(DeadUnits()).severity == "info"

    def test_the_share_can_be_changed(self, story):
        told = story().add(signals.DEATH, act0=0.6)
        assert told.find(DeadUnits(share=0.7)) == []
        assert told.one(DeadUnits(share=0.55)).evidence[0].threshold == 0.55


SIGMOIDS = {"fc0": "Linear", "act0": "Tanh", "fc1": "Linear", "act1": "Tanh", "fc2": "Linear", "out": "Sigmoid"}


class TestSaturatedActivation:
    def test_the_first_hidden_layer_that_is_saturated_at_birth(self, story):
        told = story(SIGMOIDS).add(signals.SATURATION, act0=0.1, act1=0.98)
        found = told.one(SaturatedActivation())
        assert (found.layer, found.step, found.detected_at) == ("act1", 1, 5)
        assert (found.remedy.action, found.remedy.arguments) == ("reinit", {"layers": ["fc1"]})

    @pytest.mark.parametrize(
        ("norms", "action", "arguments"),
        [
            ((8.0, 80.0, 90.0), "reinit", {"layers": ["fc1", "fc2"]}),  # all weights that are too large
            ((8.0, 8.0, 8.0), "replace_activation", {"layers": ["act1"], "by": "ELU"}),
        ],
    )
    def test_what_to_try_depends_on_the_size_of_weights(self, story, norms, action, arguments):
        told = story(SIGMOIDS).add(signals.SATURATION, act0=0.1, act1=0.98)
        found = told.weights(signals.WEIGHT, *norms, steps=[0]).one(SaturatedActivation())
        assert (found.remedy.action, found.remedy.arguments) == (action, arguments)

    def test_one_that_becomes_so_later(self, story):
        told = story(SIGMOIDS).add(signals.SATURATION, act0=change(0.1, 0.9), act1=0.0)
        found = told.one(SaturatedActivation())
        assert (found.layer, found.step, found.detected_at) == ("act0", 10, 12)
        assert found.remedy.arguments == {"layers": ["fc0"]}
        assert told.weights(signals.UPDATE_RATIO, 0.1, 0.1, 0.1).one(SaturatedActivation()).remedy.action == "scale_lr"

    def test_the_output_of_a_model_may_be_saturated(self, story):
        assert story(SIGMOIDS).add(signals.SATURATION, act0=0.1, out=1.0).find(SaturatedActivation()) == []

    def test_half_of_the_outputs_may_be(self, story):
        assert story(SIGMOIDS).add(signals.SATURATION, act0=0.5).find(SaturatedActivation()) == []

    def test_a_single_step_is_nothing(self, story):
        values = np.full(30, 0.1)
        values[::6] = 1.0
        assert story(SIGMOIDS).add(signals.SATURATION, act0=values).find(SaturatedActivation()) == []

    def test_thresholds_can_be_changed(self, story):
        told = story(SIGMOIDS).add(signals.SATURATION, act0=0.6)
        assert told.find(SaturatedActivation(share=0.7)) == []
        assert told.one(SaturatedActivation(at_birth=0.55)).remedy.action == "reinit"


class TestExplodingSignal:
    def test_the_first_layer_that_adds_much(self, story):
        told = story().add(signals.OUTPUT, fc0=1.0, fc1=2.0, fc2=3000.0)
        found = told.one(ExplodingSignal())
        assert (found.layer, found.step, found.detected_at) == ("fc2", 1, 1)
        assert (found.severity, found.remedy.action) == ("warning", "reinit")
        assert found.remedy.arguments == {"layers": ["fc0", "fc1", "fc2"]}

    @pytest.mark.parametrize(
        ("act1", "norms", "action", "arguments"),
        [
            ("ReLU", (8.0, 8.0, 300.0), "reinit", {"layers": ["fc2"]}),
            ("ReLU", (8.0, 8.0, 8.0), "reinit", {"layers": ["fc0", "fc1", "fc2"], "gain": 0.5}),
            ("Exp", (8.0, 8.0, 8.0), "replace_activation", {"layers": ["act1"], "by": "ELU"}),
            ("Dropout", (8.0, 8.0, 8.0), "reinit", {"layers": ["fc0", "fc1", "fc2"], "gain": 0.5}),
        ],
    )
    def test_what_to_try_depends_on_the_size_of_weights(self, story, act1, norms, action, arguments):
        layers = {"fc0": "Linear", "act0": "ReLU", "fc1": "Linear", "act1": act1, "fc2": "Linear"}
        told = story(layers).add(signals.OUTPUT, fc0=1.0, fc1=2.0, fc2=3000.0)
        found = told.weights(signals.WEIGHT, *norms, steps=[0]).one(ExplodingSignal())
        assert (found.remedy.action, found.remedy.arguments) == (action, arguments)

    def test_what_the_first_steps_have_done_is_another_symptom(self, story):
        grows = np.array([1.0, 300.0, 3e3, 3e4, 3e5, 3e6])
        assert story().add(signals.OUTPUT, fc0=1.0, fc1=np.full(6, 2.0), fc2=grows).find(ExplodingSignal()) == []

    def test_it_may_be_the_first_layer_if_inputs_are_known(self, story):
        told = story().add(signals.OUTPUT, fc0=200.0, fc1=200.0, fc2=200.0)
        assert told.find(ExplodingSignal()) == []
        told.add(signals.INPUT_MEAN, input=0.0).add(signals.INPUT_STD, input=1.0)
        found = told.one(ExplodingSignal())
        assert found.layer == "fc0"
        assert found.explanation.startswith("Outputs grow 200 times from the input to fc0, ")

    def test_small_inputs_that_biases_outweigh_are_no_explosion(self, story):
        told = story().add(signals.OUTPUT, fc0=0.3, fc1=0.3, fc2=0.3)
        told.add(signals.INPUT_MEAN, input=0.0).add(signals.INPUT_STD, input=1e-3)
        assert told.find(ExplodingSignal()) == []
        assert told.one(ExplodingSignal(small_input=1e-4)).layer == "fc0"

    @pytest.mark.parametrize(("bias", "is_bad"), [(290.0, False), (200.0, True)])
    def test_a_last_bias_at_the_mean_of_the_targets_is_no_explosion(self, story, bias, is_bad):
        told = story().add(signals.OUTPUT, fc0=0.6, fc1=0.3, fc2=290.1)
        told.add(signals.WEIGHT, [0, 10], fc2__bias=[NAN, bias * 8**0.5])
        assert [one.layer for one in told.find(ExplodingSignal())] == ["fc2"] * is_bad

    def test_large_inputs_are_no_explosion(self, story):
        told = story().add(signals.OUTPUT, fc0=500.0, fc1=800.0, fc2=300.0)
        told.add(signals.INPUT_MEAN, input=1000.0).add(signals.INPUT_STD, input=10.0)
        assert told.find(ExplodingSignal()) == []

    def test_a_branch_that_starts_at_zero_is_left_out(self, story):
        assert story().add(signals.OUTPUT, fc0=0.0, fc1=1.0, fc2=0.0).find(ExplodingSignal()) == []

    def test_ninety_times_is_not_enough_unless_wished(self, story):
        told = story().add(signals.OUTPUT, fc0=1.0, fc1=9.0, fc2=90.0)
        assert told.find(ExplodingSignal()) == []
        assert told.one(ExplodingSignal(growth=50)).layer == "fc1"
        assert told.one(ExplodingSignal(growth=50, per_layer=9.5)).layer == "fc2"

    def test_what_grows_later_is_something_else(self, story):
        grown = np.concatenate([np.ones(10), np.full(10, 1e6)])
        assert story().add(signals.OUTPUT, fc0=1.0, fc1=1.0, fc2=grown).find(ExplodingSignal()) == []

    def test_so_is_what_steps_have_done_before_any_was_observed(self, story):
        told = story().add(signals.OUTPUT, steps=range(50, 70), fc0=1.0, fc1=1.0, fc2=3000.0)
        told.weights(signals.WEIGHT, [1.0, 9.0], [1.0, 9.0], [1.0, 9.0], steps=[0, 50])
        assert told.find(ExplodingSignal()) == []

    def test_off_in_a_run_that_goes_on(self, story):
        assert story(since=100).add(signals.OUTPUT, fc0=1.0, fc1=2.0, fc2=3000.0).find(ExplodingSignal()) == []


class TestSymmetricUnits:
    @staticmethod
    def alike(told, weights, gradients):
        told.weights(signals.WEIGHT_ALIKE, *weights, steps=[1])
        return told.weights(signals.GRADIENT_ALIKE, *gradients, steps=[1])

    def test_the_first_layer_whose_units_are_alike_for_ever(self, story):
        found = self.alike(story(), (0.9, 0.0, 0.0), (0.9, 1e-7, 1e-7)).one(SymmetricUnits())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc1", 1, 1, "error")
        assert found.remedy.arguments == {"layers": ["fc1", "fc2"]}

    @pytest.mark.parametrize(
        ("weights", "gradients"),
        [
            ((0.9, 0.0, 0.9), (0.9, 0.8, 0.9)),  # a branch that starts at zero, or LoRA's B: gradients part them
            ((0.9, 0.9, 0.9), (0.9, 0.0, 0.9)),  # LoRA's A gets no gradient at first
            ((0.0, 0.9, 0.9), (None, 0.9, 0.9)),  # without a gradient nothing is known
        ],
    )
    def test_zeros_are_healthy(self, story, weights, gradients):
        assert self.alike(story(), weights, gradients).find(SymmetricUnits()) == []

    def test_frozen_weights_are_left_alone(self, story):
        told = self.alike(story(), (0.0, 0.9, 0.9), (0.0, 0.9, 0.9))
        told.facts.parameters["fc0.weight"].trainable = False
        assert told.find(SymmetricUnits()) == []

    def test_the_spread_can_be_changed(self, story):
        told = self.alike(story(), (0.1, 0.9, 0.9), (0.1, 0.9, 0.9))
        assert told.find(SymmetricUnits()) == []
        assert told.one(SymmetricUnits(spread=0.2)).layer == "fc0"

    def test_off_in_a_run_that_goes_on(self, story):
        assert self.alike(story(since=9), (0.0,) * 3, (0.0,) * 3).find(SymmetricUnits()) == []


class TestRankCollapse:
    def test_where_samples_become_the_same(self, story):
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.8, fc1=0.01, fc2=0.003)
        found = told.one(RankCollapse())
        assert (found.layer, found.step, found.detected_at) == ("fc1", 1, 5)

    def test_after_some_steps(self, story):
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.8, fc1=change(0.7, 0.001))
        found = told.one(RankCollapse())
        assert (found.layer, found.step, found.detected_at) == ("fc1", 10, 12)

    def test_inputs_that_are_the_same_for_every_sample(self, story, flat, falling):
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.0, fc1=1e-8, fc2=0.0)
        found = told.losses(flat(200)).one(RankCollapse())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc0", 1, 5, "error")
        assert "the same for every sample" in found.explanation
        assert found.remedy.text.startswith("Look at what the model gets")
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.0, fc1=1e-8, fc2=0.0)
        assert told.losses(falling(200)).find(RankCollapse()) == []  # it learns from something else
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.0, fc1=0.3, fc2=0.4)  # what is added to other inputs
        assert told.losses(flat(200)).find(RankCollapse()) == []
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.0, fc1=0.0).losses(flat(200))
        assert told.weights(signals.WEIGHT, 0.0, 1.0, 1.0).find(RankCollapse()) == []  # weights of 0 do that as well

    @pytest.mark.parametrize(
        "spreads",
        [
            {"fc0": 0.015, "fc1": 0.012},  # inputs that are alike
            {"fc0": 0.8, "fc1": 0.01, "fc2": 0.5},  # a branch that adds little
            {"fc0": 0.8, "fc1": 0.021},
            {"fc0": 0.001},
        ],
    )
    def test_healthy_ones(self, story, spreads):
        assert story().add(signals.LAYER_BATCH_SPREAD, **spreads).find(RankCollapse()) == []

    def test_thresholds_can_be_changed(self, story):
        told = story().add(signals.LAYER_BATCH_SPREAD, fc0=0.3, fc1=0.01)
        assert told.find(RankCollapse(spread=0.005)) == []
        assert told.find(RankCollapse(share=0.01)) == []


class TestAttentionCollapse:
    def test_the_first_layer_whose_entropy_is_low(self, story):
        told = story().add(signals.ATTENTION_ENTROPY, fc0=0.9, fc1=change(0.9, 0.05), fc2=change(0.9, 0.01))
        found = told.one(AttentionCollapse())
        assert (found.layer, found.step, found.detected_at) == ("fc1", 10, 12)
        assert found.remedy.action == "scale_lr"

    @pytest.mark.parametrize(("losses", "severity"), [("falling", "info"), ("flat", "error")])
    def test_a_mask_that_hides_all_but_one_key(self, story, falling, flat, losses, severity):
        told = story().losses({"falling": falling(), "flat": flat()}[losses])
        told.history.add(signals.ATTENTION_ENTROPY, ["fc1"], np.zeros(20, int), np.arange(1, 21), np.full(20, np.nan))
        told.add(signals.ATTENTION_ENTROPY, fc0=0.9).add(signals.ATTENTION_LOGIT, fc0=1.0, fc1=1.0)
        found = told.one(AttentionCollapse())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc1", 1, 5, severity)
        assert "a single key that it may look at" in found.explanation
        assert found.remedy.text.startswith("Look at the attention mask")

    def test_a_batch_with_a_single_key_now_and_then_is_fine(self, story):
        told = story().add(signals.ATTENTION_ENTROPY, fc0=np.tile([0.9, np.nan], 10))
        assert told.add(signals.ATTENTION_LOGIT, fc0=1.0).find(AttentionCollapse()) == []
        lost = story().add(signals.ATTENTION_ENTROPY, fc0=change(0.9, np.nan))  # the logits are not finite either
        assert lost.add(signals.ATTENTION_LOGIT, fc0=change(1.0, np.nan)).find(AttentionCollapse()) == []

    def test_logits_that_grow(self, story):
        told = story().add(signals.ATTENTION_ENTROPY, fc0=0.9).add(signals.ATTENTION_LOGIT, fc0=change(8.0, 90.0))
        found = told.one(AttentionCollapse())
        assert (found.layer, found.step, found.evidence[0].series) == ("fc0", 10, signals.ATTENTION_LOGIT)

    def test_logits_that_were_always_large_are_fine(self, story):
        told = story().add(signals.ATTENTION_ENTROPY, fc0=0.9).add(signals.ATTENTION_LOGIT, fc0=90.0)
        assert told.find(AttentionCollapse()) == []

    @pytest.mark.parametrize(("losses", "severity"), [("falling", "info"), ("flat", "error"), ("none", "info")])
    def test_only_with_harm_is_it_more_than_odd(self, story, falling, flat, losses, severity):
        told = story().add(signals.ATTENTION_ENTROPY, fc0=0.02)
        told.losses({"falling": falling(), "flat": flat(), "none": []}[losses])
        found = told.one(AttentionCollapse())
        assert (found.severity, found.remedy.action) == (severity, "reinit")

    def test_thresholds_can_be_changed(self, story):
        told = story().add(signals.ATTENTION_ENTROPY, fc0=0.2).add(signals.ATTENTION_LOGIT, fc0=change(8.0, 90.0))
        assert told.find(AttentionCollapse(logit=100)) == []
        assert told.one(AttentionCollapse(entropy=0.3)).evidence[0].threshold == 0.3


class TestExpertCollapse:
    def test_half_of_the_experts_get_nothing(self, story):
        told = story().add(signals.EXPERT_SHARE, fc0=0.3, fc1=change(0.3, 0.01))
        found = told.one(ExpertCollapse())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc1", 10, 12, "warning")

    def test_a_single_expert_that_is_not_used_is_fine(self, story):
        assert story().add(signals.EXPERT_SHARE, fc0=0.2).find(ExpertCollapse()) == []

    def test_the_share_can_be_changed(self, story):
        assert story().add(signals.EXPERT_SHARE, fc0=0.2).one(ExpertCollapse(share=0.25)).layer == "fc0"

    def test_one_that_is_even_again_is_over(self, story):
        told = story().add(signals.EXPERT_SHARE, fc0=[0.01] * 10 + [0.4] * 10)
        found = told.one(ExpertCollapse())
        assert found.severity == "info"
        assert found.resolved_at == 11
