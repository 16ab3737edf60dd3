"""What goes wrong in backward passes: each symptom, and the healthy runs that look like it."""

import numpy as np
import pytest

from monitorch.diagnosis import diagnose, signals
from monitorch.diagnosis.history import Parameter
from monitorch.diagnosis.symptoms import NoGradient, NotFinite, Underflow, VanishingGradient

NAN = np.nan


class TestNonFinite:
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_the_first_loss_if_no_more_is_known(self, story, value):
        found = story().losses([2.0, 1.9, 1.8, value, value, value]).one(NotFinite())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 4, 4, "error")
        assert found.explanation.startswith("The loss is not finite.")
        assert found.remedy.action == "clip"

    def test_the_first_tensor_if_it_is_known(self, story):
        told = story().losses([2.0] * 9 + [np.nan])
        told.facts.origin = {"step": 8, "where": "forward", "what": "output", "layer": "act1", "text": "act1 has a NaN"}
        found = told.one(NotFinite())
        assert (found.layer, found.step) == ("act1", 8)
        assert found.explanation.startswith("Act1 has a NaN. ")

    def test_a_layer_that_was_seen_only_after_everything_was_nan_is_not_named(self, story):
        told = story().losses([2.0, 2.0] + [np.nan] * 8)
        told.facts.origin = {
            "step": 9,
            "where": "backward",
            "what": "gradient",
            "layer": "fc2",
            "text": "fc2 has a NaN",
        }
        found = told.one(NotFinite())
        assert (found.layer, found.step) == (None, 3)
        assert "since step 3; that step was not observed" in found.explanation

    def test_an_input_is_a_bad_batch(self, story):
        told = story()
        told.facts.origin = {"step": 8, "where": "forward", "what": "input", "layer": "fc0", "text": "the input"}
        assert told.one(NotFinite()).remedy.action is None

    @pytest.mark.parametrize(
        ("where", "between", "layer"),
        [
            ("forward", ["fc0", "fc1"], "act0"),  # the only one between two that are measured
            ("forward", ["fc0", "fc2"], "fc2"),  # several are: the one where it was seen
            ("forward", None, "fc2"),
            ("backward", ["act0", "fc1"], "act0"),  # nothing is between: the first one's backward
        ],
    )
    def test_what_is_between_two_layers_is_named(self, story, where, between, layer):
        told, known = story(), {"step": 8, "where": where, "what": "output", "layer": "fc2", "text": "NaN"}
        told.facts.origin = {**known, "between": between}
        assert told.one(NotFinite()).layer == layer

    @pytest.mark.parametrize(
        ("origin", "where"),
        [
            (None, "Look at the data for numbers that are not finite, and in the model and in the loss for"),
            ({"where": "forward", "what": "output", "layer": "act1"}, "Look at this layer for"),
            ({"where": "backward", "what": "output gradient", "layer": "fc2"}, "Look after fc2, in the loss and in"),
        ],
    )
    def test_where_to_look(self, story, origin, where):
        told = story().losses([2.0, 1.9] + [np.nan] * 5)
        told.facts.origin = None if origin is None else {"step": 3, "text": "NaN", **origin}
        assert told.one(NotFinite()).remedy.text.startswith(where)

    @pytest.mark.parametrize(("at", "is_told"), [(2, True), (3, False), (5, False)])
    def test_an_evaluation_that_was_not_finite_before_is_told(self, story, at, is_told):
        told = story().losses([2.0, 1.9] + [np.nan] * 5).checks([np.nan], steps=[at])
        text = told.one(NotFinite()).explanation
        assert (f"An evaluation was not finite before, at step {at}." in text) == is_told

    @pytest.mark.parametrize(("dtype", "word"), [("float16", "Keep weights in float32"), ("float32", "Look at this")])
    def test_a_step_in_float16_that_divides_by_zero(self, story, dtype, word):
        told = story(dtype=dtype)
        origin = {"step": 1, "where": "step", "what": "update", "layer": "fc2", "parameter": "bias", "text": "NaN"}
        told.facts.origin = origin
        assert told.one(NotFinite()).remedy.text.startswith(word)

    def test_finite_losses_are_fine_however_large(self, story):
        assert story().losses([1e30, -1e30, 0.0]).find(NotFinite()) == []
        assert story().find(NotFinite()) == []


class TestVanishingGradient:
    def test_going_back_the_first_layer_below(self, story, flat):
        told = story().weights(signals.GRADIENT, 1e-6, 1e-4, 1.0).losses(flat(20))
        found = told.one(VanishingGradient())
        assert (found.layer, found.step, found.detected_at) == ("fc1", 1, 5)
        assert "1.0e-06 times that of fc2.weight" in found.explanation

    def test_with_what_can_be_replaced(self, story, flat):
        layers = {"fc0": "Linear", "act0": "Sigmoid", "fc1": "Linear", "act1": "Tanh", "fc2": "Linear"}
        told = story(layers).weights(signals.GRADIENT, 1e-6, 0.1, 1.0).losses(flat())
        found = told.one(VanishingGradient())
        assert found.remedy.arguments == {"layers": ["act0"], "by": "ELU"}
        assert (found.layer, found.severity) == ("fc0", "error")

    @pytest.mark.parametrize(("norm", "action"), [(8.0, "replace_activation"), (0.5, "reinit")])
    def test_small_weights_are_made_larger(self, story, flat, norm, action):
        layers = {"fc0": "Linear", "act0": "Tanh", "fc1": "Linear", "act1": "Tanh", "fc2": "Linear"}
        told = story(layers).weights(signals.GRADIENT, 1e-6, 0.1, 1.0).losses(flat())
        found = told.weights(signals.WEIGHT, norm, norm, norm, steps=[0]).one(VanishingGradient())
        assert found.remedy.action == action
        assert found.remedy.arguments.get("gain") == (1.0 if action == "reinit" else None)

    def test_it_is_not_over_as_long_as_gradients_are_near_the_limit(self, story, flat):
        ratio = np.where(np.arange(60) < 30, 1e-4, 3e-3)
        told = story().weights(signals.GRADIENT, ratio, np.full(60, 0.1), np.ones(60)).losses(flat(60))
        found = told.one(VanishingGradient())
        assert found.resolved_at is None
        assert "1.0e-04 times that of fc2.weight; it falls below 0.001" in found.explanation
        told = story().weights(signals.GRADIENT, 10 * ratio, np.full(60, 0.1), np.ones(60)).losses(flat(60))
        assert told.find(VanishingGradient()) == []

    @pytest.mark.parametrize(
        ("start", "ratio", "is_bad"),
        [(0.0, 1e-5, False), (3.0, 1e-5, True), (0.0, 5e-4, True)],  # ratio: after 60 steps it is 5e-4
    )
    def test_gradients_that_grow_from_nothing_before_a_weight_that_began_at_zero(
        self, story, flat, start, ratio, is_bad
    ):
        told = story().weights(signals.GRADIENT, np.geomspace(ratio, 5e-4, 60), np.full(60, 0.1), np.ones(60))
        told.losses(flat(60)).weights(signals.WEIGHT, 3.0, [start, 3.0], 3.0, steps=[0, 60])
        assert len(told.find(VanishingGradient())) == is_bad

    def test_it_begins_where_gradients_fall_below_the_limit_not_near_it(self, story, flat):
        ratio = np.where(np.arange(60) < 20, 3e-3, 1e-4)
        told = story().weights(signals.GRADIENT, ratio, np.full(60, 0.1), np.ones(60)).losses(flat(60))
        assert (told.one(VanishingGradient()).step, told.one(VanishingGradient()).detected_at) == (21, 23)

    def test_a_run_that_learns_is_fine(self, story, falling):
        assert story().weights(signals.GRADIENT, 1e-6, 0.1, 1.0).losses(falling()).find(VanishingGradient()) == []

    @pytest.mark.parametrize("gradients", [(0.002, 0.1, 1.0), (0.0, 0.0, 1.0), (1.0, 1e-6, 1.0)])
    def test_small_ones_zeros_and_those_in_the_middle_are_not_it(self, story, flat, gradients):
        assert story().weights(signals.GRADIENT, *gradients).losses(flat()).find(VanishingGradient()) == []

    def test_one_that_gets_ever_smaller_down_to_zero_has_vanished(self, story, flat):
        layers = {f"fc{number}": "Linear" for number in range(6)}
        told = story(layers).weights(signals.GRADIENT, 0.0, 0.0, 1e-40, 1e-20, 1e-5, 1.0).losses(flat())
        found = told.one(VanishingGradient())
        assert (found.layer, found.step, found.severity) == ("fc4", 1, "error")
        assert "fc0.weight is too small to distinguish from 0; it falls below 0.001 of that of fc5.weight in fc4" in (
            found.explanation
        )
        assert told.find(NoGradient()) == []  # nothing cuts the graph
        assert [one.symptom for one in diagnose(told.history)] == ["vanishing_gradient"]

    def test_one_that_is_cut_off_has_not(self, story, flat):
        layers = {f"fc{number}": "Linear" for number in range(6)}
        told = story(layers).weights(signals.GRADIENT, 0.0, 0.0, 1e-5, 1e-4, 1e-2, 1.0).losses(flat())
        assert told.find(VanishingGradient()) == []
        assert told.one(NoGradient()).layer == "fc1"

    def test_frozen_layers_do_not_count(self, story, flat):
        told = story().weights(signals.GRADIENT, 1e-9, 0.1, 1.0).losses(flat())
        told.facts.parameters["fc0.weight"].trainable = False
        assert told.find(VanishingGradient()) == []

    def test_the_ratio_can_be_changed(self, story, flat):
        told = story().weights(signals.GRADIENT, 0.005, 0.1, 1.0).losses(flat())
        assert told.one(VanishingGradient(ratio=0.01)).layer == "fc0"


class TestNoGradient:
    @staticmethod
    def ran(story, **gradients):
        """All three layers ran in each of 20 steps."""
        return story().add(signals.OUTPUT, fc0=1.0, fc1=1.0, fc2=1.0).add(signals.GRADIENT, **gradients)

    def test_a_layer_before_a_cut_has_none(self, story):
        told = self.ran(story, fc2__weight=1.0, fc2__bias=1.0)
        found = told.one(NoGradient())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc1", 1, 5, "warning")
        assert found.explanation == (
            "No gradient arrives in fc1 and fc0. They cannot learn: what they compute is not used, or something "
            "between them and the loss cuts the graph."
        )
        assert "detach()" in found.remedy.text
        (shown,) = found.evidence  # there is no number of a gradient that is missing
        assert (shown.series, shown.place) == (signals.OUTPUT, "fc1")

    def test_a_loose_parameter_may_have_been_forgotten_in_the_forward_pass(self, story):
        told = self.rest(story).add(signals.OUTPUT, **{"": 1.0})
        told.facts.parameters["position"] = Parameter("", (1, 17, 8), "float32")
        found = told.one(NoGradient())
        assert (found.layer, found.severity) == ("position", "info")
        assert found.explanation == (
            "No gradient arrives in position. It cannot learn: the forward pass does not use it, or something between "
            "it and the loss cuts the graph."
        )

    def test_exact_zeros_since_some_step(self, story):
        late = [1.0] * 7 + [0.0] * 13
        told = self.ran(
            story, fc0__weight=late, fc0__bias=late, fc1__weight=1.0, fc1__bias=1.0, fc2__weight=1.0, fc2__bias=1.0
        )
        found = told.one(NoGradient())
        assert (found.layer, found.step, found.detected_at) == ("fc0", 8, 12)
        assert found.explanation == (
            "The gradients of fc0 are exactly 0. It cannot learn: what comes after it is constant, or cuts the graph."
        )
        assert found.evidence[0].values == tuple(late)

    def test_layer_step_and_evidence_are_those_of_the_first(self, story):
        early, late = [1.0] * 4 + [0.0] * 16, [2.0] * 12 + [0.0] * 8
        found = self.rest(story, fc0__weight=early, fc1__weight=early, fc2__weight=late).one(NoGradient())
        assert (found.layer, found.step, found.detected_at) == ("fc1", 5, 9)
        assert (found.evidence[0].place, found.evidence[0].values) == ("fc1.weight", tuple(early))
        assert found.explanation.startswith("The gradients of fc1, fc2 and fc0 are exactly 0.")

    def test_a_weight_that_gets_zeros_while_its_bias_learns_is_behind_something_dead(self, story):
        found = self.rest(story, fc2__weight=[1.0] * 4 + [0.0] * 16).one(NoGradient())
        assert (found.layer, found.step) == ("fc2", 5)
        assert "The input of fc2 is 0 for every sample" in found.explanation
        assert "detach" not in found.remedy.text

    def test_a_bias_that_gets_a_gradient_now_and_then_says_nothing_about_the_input(self, story):
        late = [1.0] * 4 + [0.0] * 16
        now_and_then = [1.0] * 4 + [0.0, 0.0, 1e-9, 0.0] * 4
        found = self.rest(story, fc0__weight=late, fc0__bias=now_and_then).one(NoGradient())
        assert (found.layer, found.step) == ("fc0", 5)
        assert "what comes after it is constant" in found.explanation

    def test_one_weight_of_a_layer_whose_other_weights_learn_is_named_alone(self, story):
        """Of an LSTM whose first output is used: its state was 0 before."""
        told = self.rest(story, rnn__weight_ih=1.0, rnn__weight_hh=0.0, rnn__bias_hh=1.0).add(signals.OUTPUT, rnn=1.0)
        told.facts.layers["rnn"] = "LSTM"
        for name, shape in (("weight_ih", (32, 4)), ("weight_hh", (32, 8)), ("bias_hh", (32,))):
            told.facts.parameters[f"rnn.{name}"] = Parameter("rnn", shape, "float32")
        found = told.one(NoGradient())
        assert found.layer == "rnn"
        assert found.explanation == (
            "The gradient of rnn.weight_hh is exactly 0, while other weights of rnn learn: what it is multiplied by is "
            "0 for every sample, or what comes after it is constant."
        )
        assert "the state of a recurrent layer is 0" in found.remedy.text
        told.facts.layers["rnn"] = "Gate"
        assert "recurrent" not in told.one(NoGradient()).remedy.text

    def test_nobody_has_one_since_the_last_has_lost_it(self, story):
        names = {f"fc{number}__{part}": 0.0 for number in range(3) for part in ("weight", "bias")}
        found = self.ran(story, **{**names, "fc2__bias": [1.0] * 9 + [0.0] * 11}).one(NoGradient())
        assert (found.layer, found.step, found.evidence[0].place) == (None, 10, "fc2.bias")
        assert found.explanation.startswith("The gradients of all parameters are exactly 0. Nothing can learn")

    @pytest.mark.parametrize(
        ("was_empty", "advice"), [(1.0, "Call zero_grad() before"), (None, "Call loss.backward()")]
    )
    def test_nobody_ever_has_one_when_the_step_is_made(self, story, was_empty, advice):
        told = story().add(signals.OUTPUT, fc0=1.0, fc1=1.0, fc2=1.0)
        told.weights(signals.CHANGED, *[[NAN] + [0.0] * 9] * 3)
        if was_empty is not None:
            told.weights(signals.GRADIENT_EMPTY, *[np.full(10, was_empty)] * 3)
        found = told.one(NoGradient())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 6, "error")
        assert found.remedy.text.startswith(advice)

    def test_a_backward_that_never_reaches_a_parameter_has_made_none(self, story):
        told = story().weights(signals.CHANGED, *[[NAN] + [0.0] * 9] * 3)
        steps = np.arange(1, 11)
        told.history.add(signals.GRADIENT_EMPTY, ["fc0.weight"], np.zeros(10, int), steps, np.full(10, NAN))
        assert "No backward pass has made any." in told.one(NoGradient()).explanation

    def test_where_gradients_are_not_measured_weights_that_change_tell_that_there_are_some(self, story):
        assert story().weights(signals.CHANGED, 0.0, 0.0, 1.0).find(NoGradient()) == []

    def test_if_nobody_has_one_it_is_the_whole_run(self, story):
        names = {f"fc{number}__{part}": 0.0 for number in range(3) for part in ("weight", "bias")}
        found = self.ran(story, **names).one(NoGradient())
        assert (found.layer, found.severity) == (None, "error")

    def rest(self, story, **gradients):
        """All have gradients but these."""
        names = {f"fc{number}__{part}": 1.0 for number in range(3) for part in ("weight", "bias")}
        known = {**names, **gradients}
        return self.ran(story, **{name: value for name, value in known.items() if value is not None})

    def test_a_bias_without_one_is_fine(self, story):
        assert self.rest(story, fc0__bias=0.0).find(NoGradient()) == []

    def test_frozen_parameters_are_fine(self, story):
        told = self.rest(story, fc0__weight=None, fc0__bias=None)
        for name in ("fc0.weight", "fc0.bias"):
            told.facts.parameters[name].trainable = False
        assert told.find(NoGradient()) == []

    def test_an_expert_that_is_not_used_is_fine(self, story):
        told = self.rest(story)
        told.facts.layers["expert"] = "Linear"
        told.facts.parameters["expert.weight"] = Parameter("expert", (8, 8), "float32")
        assert told.find(NoGradient()) == []  # it never ran
        first = [1.0, 1.0, 1.0, *[NAN] * 17]
        told.add(signals.OUTPUT, expert=first).add(signals.GRADIENT, expert__weight=first)
        assert told.find(NoGradient()) == []  # it ran in three steps only

    def test_one_that_comes_back_is_fine(self, story):
        told = self.rest(story, fc0__weight=[0.0] * 10 + [1.0] * 10)
        assert told.find(NoGradient()) == []

    def test_a_loss_of_zero_has_no_gradient(self, story):
        assert self.rest(story, fc0__weight=0.0).losses([0.0] * 20).find(NoGradient()) == []

    def test_where_the_loss_is_zero_now_and_then_the_other_steps_tell(self, story):
        losses = np.where(np.arange(20) % 2, 0.0, 0.5)
        told = self.rest(story, fc0__weight=0.0).losses(losses)
        assert (told.one(NoGradient()).layer, told.one(NoGradient()).detected_at) == ("fc0", 9)
        gone = np.where(np.arange(20) % 2, 0.0, 1.0)
        names = {f"fc{number}__{part}": gone for number in range(3) for part in ("weight", "bias")}
        assert self.rest(story, **names).losses(losses).find(NoGradient()) == []

    def test_those_that_left_the_optimizer_are_another_matter(self, story):
        told = self.rest(story, fc0__weight=[1.0] * 9 + [0.0] * 11)
        told.add(signals.GROUP, fc0__weight=[0.0] * 9 + [-1.0] * 11)
        assert told.find(NoGradient()) == []

    def test_the_number_of_steps_can_be_changed(self, story):
        told = self.rest(story, fc0__weight=[1.0] * 13 + [0.0] * 7)
        assert told.one(NoGradient(steps=2)).detected_at == 15
        assert told.find(NoGradient(steps=8)) == []


class TestUnderflow:
    LOST, FINE = 8 * 1e-8, 8 * 1e-6  # norms of 64 elements

    def test_going_back_the_first_weight_that_is_lost(self, story):
        told = story(dtype="float16").weights(signals.GRADIENT, self.LOST, self.LOST, self.FINE)
        found = told.one(Underflow())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("fc1", 1, 5, "warning")
        assert found.remedy.action == "grad_scaler"

    def test_layers_that_compute_in_half_with_weights_in_float32(self, story):
        told = story(computes_in_half=True).weights(signals.GRADIENT, self.LOST, self.FINE, self.FINE)
        assert told.one(Underflow()).layer == "fc0"

    @pytest.mark.parametrize("facts", [{}, {"dtype": "bfloat16"}, {"dtype": "float16", "loss_scale": True}])
    def test_other_numbers_and_scaled_losses_are_fine(self, story, facts):
        assert story(**facts).weights(signals.GRADIENT, self.LOST, self.LOST, self.LOST).find(Underflow()) == []

    def test_dead_units_alone_make_gradients_zero(self, story):
        told = story(dtype="float16").weights(signals.GRADIENT, 0.0, 0.0, self.FINE).add(signals.DEATH, act0=1.0)
        assert told.find(Underflow()) == []

    def test_so_does_a_loss_of_zero(self, story):
        told = story(dtype="float16").weights(signals.GRADIENT, 0.0, 0.0, 0.0).losses([0.0] * 20)
        assert told.find(Underflow()) == []

    def test_the_level_can_be_changed(self, story):
        told = story(dtype="float16").weights(signals.GRADIENT, self.FINE, self.FINE, self.FINE)
        assert told.find(Underflow()) == []
        assert told.one(Underflow(level=1000)).layer == "fc2"
