"""What is wrong with data and with what enters the loss, and the healthy runs that look like it."""

import numpy as np
import pytest

from monitorch.diagnosis import signals, switched_off
from monitorch.diagnosis.symptoms import InputScale, OutputLossMismatch, UnrepresentativeBatches

NAN = np.nan


def inputs(told, mean=0.0, std=1.0, spread=3.0, **options):
    told.add(signals.INPUT_MEAN, input=mean, **options).add(signals.INPUT_STD, input=std, **options)
    return told.add(signals.FEATURE_SPREAD, input=spread, **options)


class TestInputScale:
    @pytest.mark.parametrize(
        ("numbers", "words", "series"),
        [
            ({"std": 300.0}, "a standard deviation of 300", signals.INPUT_STD),
            ({"mean": -127.0}, "a mean 127 from 0", signals.INPUT_STD),
            ({"spread": 5000.0, "std": 4.0}, "up to 5,000 times apart", signals.FEATURE_SPREAD),
        ],
    )
    def test_it_is_seen_in_the_first_step(self, story, numbers, words, series):
        found = inputs(story(), **numbers, steps=[1]).one(InputScale())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 1, "warning")
        assert words in found.explanation
        assert found.evidence[0].series == series
        assert found.remedy.action == "standardise_input"

    def test_a_first_layer_that_normalises_makes_it_harmless(self, story):
        told = inputs(story({"bn": "BatchNorm1d", "fc0": "Linear"}), std=300.0)
        told.facts.parameters = {"bn.weight": next(iter(told.facts.parameters.values()))}
        told.facts.parameters["bn.weight"].layer = "bn"
        assert told.one(InputScale()).severity == "info"

    @pytest.mark.parametrize(("losses", "severity"), [("flat", "error"), ("falling", "info")])
    def test_inputs_that_are_scaled_twice_are_small(self, story, flat, falling, losses, severity):
        told = inputs(story(), mean=0.002, std=0.001).losses({"flat": flat, "falling": falling}[losses](200))
        found = told.one(InputScale())
        assert (found.severity, found.remedy.action) == (severity, "standardise_input")
        assert "a standard deviation of 0.001" in found.explanation
        assert "scaled twice" in found.remedy.text
        assert told.find(InputScale(small=0.001)) == []
        assert inputs(story(), mean=0.0, std=0.0).find(InputScale()) == []

    @pytest.mark.parametrize(
        "numbers",
        [{}, {"mean": 9.0, "std": 9.0, "spread": 90.0}, {"spread": 5000.0}],  # the last: borders of images
    )
    def test_sizes_that_are_fine(self, story, numbers):
        assert inputs(story(), **numbers).find(InputScale()) == []

    def test_integers_for_an_embedding_have_no_scale(self, story):
        told = story().add(signals.LOSS_INPUT_MEAN, target=500.0)
        assert told.find(InputScale()) == []
        assert "input_scale" in switched_off(told.history)

    def test_one_odd_batch_is_no_matter_of_scale(self, story):
        assert inputs(story(), std=[1.0] * 9 + [500.0] + [1.0] * 10).find(InputScale()) == []

    def test_an_input_with_features_beside_one_that_has_none_and_comes_more_often(self, story):
        told = story().add(signals.INPUT_MEAN, noise=0.0, steps=range(1, 21))
        told.add(signals.INPUT_STD, noise=1.0, steps=range(1, 21))
        found = inputs(told, std=300.0, steps=range(2, 21, 2)).one(InputScale())
        assert (found.step, found.severity) == (2, "warning")

    def test_thresholds_can_be_changed(self, story):
        told = inputs(story(), std=300.0, spread=5000.0)
        assert told.find(InputScale(size=1000, features=10_000)) == []
        assert told.find(InputScale(size=1000, large=500)) == []
        assert told.one(InputScale(size=1000)).evidence[0].threshold == 100.0


def outputs(told, low, high, sums=None, targets=None, count=20):
    """What enters the loss: the range of outputs, the sums of their rows, and the range of targets."""
    steps = np.repeat(np.arange(1, count + 1), 2)
    told.add(signals.LOSS_INPUT_RANGE, steps, output=np.tile([low, high], count))
    if sums is not None:
        told.add(signals.ROW_SUM, steps, output=np.tile(sums, count))
    if targets is not None:
        told.add(signals.LOSS_INPUT_RANGE, steps, target=np.tile(targets, count))
    return told


def ending(last):
    return {"fc0": "Linear", "act0": "ReLU", "fc1": "Linear", "out": last}


class TestOutputLossMismatch:
    @pytest.mark.parametrize(("kind", "wanted"), [("CrossEntropyLoss", "logits"), ("NLLLoss", "log-probabilities")])
    def test_probabilities_for_a_loss_that_wants_logits(self, story, kind, wanted):
        told = outputs(story(ending("Softmax"), loss_fn=kind), 0.01, 0.4, [1.0, 1.0 + 1e-6], count=1)
        found = told.one(OutputLossMismatch())
        assert (found.layer, found.step, found.detected_at, found.severity) == ("out", 1, 1, "error")
        assert f"wants {wanted}" in found.explanation
        cures = {
            "logits": ("drop_output_activation", {"layer": "out"}),
            "log-probabilities": ("replace_activation", {"layers": ["out"], "by": "LogSoftmax"}),
        }
        assert (found.remedy.action, found.remedy.arguments) == cures[wanted]

    @pytest.mark.parametrize(
        ("shape", "mean", "said"),
        [
            ([50, 6], 1 / 50, "dimension 0, which is that of samples"),
            ([8, 6, 20], 1 / 20, "dimension 2, which is not that of classes"),
            ([50, 6], 1 / 45, None),
            ([50, 6], 1 / 6, None),  # rows would tell
            ([1, 6], 1.0, None),
        ],
    )
    def test_a_softmax_over_another_dimension_than_that_of_classes(self, story, shape, mean, said):
        told = story(loss_fn="CrossEntropyLoss", classes=6, loss_shapes={"output": shape, "target": shape[:1]})
        told = outputs(told, 0.001, 0.3, [0.1, 0.4])
        found = told.add(signals.LOSS_INPUT_MEAN, output=[mean] * 19 + [1 / 37]).find(OutputLossMismatch())
        assert len(found) == (said is not None)
        if said is not None:
            assert said in found[0].explanation
            assert found[0].remedy.text == "Remove the function that is called after fc2, such as a softmax."

    def test_logits_are_fine(self, story):
        told = outputs(story(loss_fn="CrossEntropyLoss"), -3.0, 4.0, [-2.0, 5.0])
        assert told.find(OutputLossMismatch()) == []

    def test_rows_that_sum_to_one_need_not_be_probabilities(self, story):
        told = outputs(story(loss_fn="CrossEntropyLoss"), -3.0, 4.0, [1.0, 1.0])
        assert told.find(OutputLossMismatch()) == []

    def test_so_are_log_probabilities(self, story):
        told = outputs(story(ending("LogSoftmax"), loss_fn="NLLLoss"), -9.0, -0.1, [-30.0, -23.0])
        assert told.find(OutputLossMismatch()) == []

    @pytest.mark.parametrize(
        ("low", "means", "is_bad"),
        [
            (0.001, [1 / 32] * 20, True),
            (0.001, [*[1 / 32] * 18, 1 / 10, 1 / 10], True),  # two batches were smaller
            (0.001, [0.03] * 20, False),
            (-0.001, [1 / 32] * 20, False),
            (0.001, [1 / 32] * 4, False),
        ],
    )
    def test_a_softmax_over_samples(self, story, low, means, is_bad):
        told = story(loss_fn="CrossEntropyLoss", classes=4, loss_shapes={"output": [32, 4], "target": [32]})
        told = outputs(told, low, 0.3, [0.05, 0.4], count=len(means)).add(signals.LOSS_INPUT_MEAN, output=means)
        found = told.find(OutputLossMismatch())
        assert [(one.layer, one.severity) for one in found] == [("fc2", "error")] * is_bad
        assert ["which is that of samples" in one.explanation for one in found] == [True] * is_bad
        assert all(one.remedy.text.endswith("called after fc2, such as a softmax.") for one in found)

    def test_a_softmax_over_one_unit(self, story):
        found = outputs(story(ending("Softmax"), loss_fn="BCELoss"), 1.0, 1.0).one(OutputLossMismatch())
        assert found.explanation.startswith("Every output is exactly 1")
        assert found.remedy.arguments == {"layers": ["out"], "by": "Sigmoid"}

    def test_a_sigmoid_before_a_loss_that_has_one(self, story):
        told = outputs(story(ending("Sigmoid"), loss_fn="BCEWithLogitsLoss"), 0.1, 0.9, count=1)
        assert "after Sigmoid, but BCEWithLogitsLoss wants logits" in told.one(OutputLossMismatch()).explanation

    @pytest.mark.parametrize(
        ("low", "high", "shape"),
        [(-0.5, 4.25, [64, 1]), (-3.0, 0.5, [64, 8]), (-0.5, 0.5, [63, 1]), (-1.0, 1.01, [64, 8])],
    )
    def test_a_generator_is_not_blamed_for_what_a_discriminator_gives_the_loss(self, story, low, high, shape):
        facts = {"loss_fn": "BCEWithLogitsLoss", "loss_shapes": {"output": shape, "target": shape}}
        assert outputs(story(ending("Tanh"), **facts), low, high).find(OutputLossMismatch()) == []

    def test_what_enters_the_loss_is_judged_even_if_it_comes_from_elsewhere(self, story):
        shapes = {"output": [32, 4], "target": [32]}
        facts = {"loss_fn": "CrossEntropyLoss", "classes": 4, "loss_shapes": shapes}
        found = outputs(story(ending("LogSigmoid"), **facts), 0.01, 0.9, [1.0, 1.0]).one(OutputLossMismatch())
        assert (found.layer, found.remedy.action) == (None, None)
        assert found.remedy.text == "Remove the function that is called before the loss, such as a softmax."

    @pytest.mark.parametrize("last", ["Sigmoid", "Tanh", "Softsign", "Hardtanh"])
    def test_logits_must_be_free_to_grow(self, story, last):
        told = outputs(story(ending(last), loss_fn="CrossEntropyLoss", classes=4), 0.1, 0.9, [0.8, 2.0], count=1)
        found = told.one(OutputLossMismatch())
        assert f"after {last}, but CrossEntropyLoss wants logits" in found.explanation
        assert (found.remedy.action, found.remedy.arguments) == ("drop_output_activation", {"layer": "out"})

    def test_a_sigmoid_that_is_called_as_a_function_is_seen_after_ten_batches(self, story):
        told = outputs(story(loss_fn="CrossEntropyLoss", classes=4), 0.1, 0.9, [0.8, 2.0], count=10)
        assert "such as a sigmoid" in told.one(OutputLossMismatch()).explanation
        few = outputs(story(loss_fn="CrossEntropyLoss", classes=4), 0.1, 0.9, [0.8, 2.0], count=9)
        assert few.find(OutputLossMismatch()) == []
        rectified = outputs(story(loss_fn="CrossEntropyLoss", classes=4), 0.0, 0.9, [0.8, 2.0])
        assert rectified.find(OutputLossMismatch()) == []

    def test_probabilities_for_nll_loss_lack_a_logarithm(self, story):
        told = outputs(story(ending("Softmax"), loss_fn="NLLLoss", classes=4), 0.01, 0.9, [1.0, 1.0])
        found = told.one(OutputLossMismatch())
        assert "The logarithm is missing" in found.explanation
        assert "twice" not in found.explanation
        assert found.remedy.arguments["by"] == "LogSoftmax"

    def test_a_single_class_makes_the_loss_always_zero(self, story):
        shapes = {"output": [32, 1], "target": [32]}
        told = outputs(story(loss_fn="CrossEntropyLoss", classes=1, loss_shapes=shapes), -1.0, 1.0)
        found = told.one(OutputLossMismatch())
        assert "a single class" in found.explanation
        assert found.remedy.text.startswith("Give the last layer one output for each class")

    def test_small_positive_logits_of_a_model_that_says_the_same_always_are_no_sigmoid(self, story):
        told = outputs(story(loss_fn="CrossEntropyLoss", classes=4), 0.03, 0.43, [0.8, 1.2], count=10)
        assert told.find(OutputLossMismatch()) == []

    @pytest.mark.parametrize("middle", [0.25, 0.75])
    def test_logits_that_begin_beside_the_middle_are_no_sigmoid(self, story, middle):
        told = story(loss_fn="BCEWithLogitsLoss")
        low, high = np.linspace(middle - 0.1, 0.1, 20), np.linspace(middle + 0.1, 0.9, 20)
        steps = np.repeat(np.arange(1, 21), 2)
        told.add(signals.LOSS_INPUT_RANGE, steps, output=np.stack([low, high], 1).ravel())
        assert told.find(OutputLossMismatch()) == []

    @pytest.mark.parametrize(("size", "is_bad"), [(0.5, False), (0.9, True)])
    def test_logits_that_come_straight_from_the_last_layer_are_no_sigmoid(self, story, size, is_bad):
        told = outputs(story(loss_fn="BCEWithLogitsLoss"), 0.3, 0.7)
        told.add(signals.LOSS_INPUT_MEAN, output=0.48).add(signals.LOSS_INPUT_STD, output=0.14)
        assert len(told.add(signals.OUTPUT, fc2=size).find(OutputLossMismatch())) == is_bad

    @pytest.mark.parametrize(
        ("loss", "targets", "facts", "is_bad"),
        [
            ("BCEWithLogitsLoss", [-1.0, 1.0], {}, True),
            ("BCELoss", [0.0, 255.0], {}, True),
            ("BCEWithLogitsLoss", [0.0, 1.0], {}, False),
            ("BCEWithLogitsLoss", [0.0, 1.0005], {}, False),
            ("BCEWithLogitsLoss", [-1.0, 1.0], {"loss_is_mean": False}, False),  # -1 may be masked
            ("MSELoss", [-1.0, 1.0], {}, False),
        ],
    )
    def test_targets_of_yes_or_no_are_between_0_and_1(self, story, loss, targets, facts, is_bad):
        found = outputs(story(loss_fn=loss, **facts), -0.5, 0.9, targets=targets).find(OutputLossMismatch())
        assert [(one.layer, one.severity) for one in found] == [(None, "error")] * is_bad
        assert all(f"{loss} wants them between 0 and 1" in one.explanation for one in found)

    def test_a_loss_below_0_tells_that_none_is_masked(self, story, falling):
        told = outputs(story(loss_fn="BCEWithLogitsLoss", loss_is_mean=False), -0.5, 0.9, targets=[-1.0, 1.0])
        assert "between -1 and 1" in told.losses(falling() - 1).one(OutputLossMismatch()).explanation

    def test_a_softmax_that_is_called_as_a_function_is_named(self, story):
        told = outputs(story(loss_fn="CrossEntropyLoss", classes=2), 0.1, 0.9, [1.0, 1.0])
        assert told.one(OutputLossMismatch()).remedy.text.endswith("after fc2, such as a softmax.")

    @pytest.mark.parametrize("last", ["ReLU", "Linear"])
    def test_a_logit_that_is_never_negative(self, story, last):
        told = outputs(story(ending(last), loss_fn="BCEWithLogitsLoss"), 0.0, 3.0, targets=[0.0, 1.0])
        assert "negative for a no" in told.one(OutputLossMismatch()).explanation

    @pytest.mark.parametrize(
        ("low", "high", "function"), [(0.0, 3.0, "relu"), (0.001, 0.999, "sigmoid"), (0.1, 0.9, "sigmoid")]
    )
    def test_a_function_that_is_called_is_to_be_removed_and_the_layer_before_it_stays(self, story, low, high, function):
        told = outputs(story(loss_fn="BCEWithLogitsLoss"), low, high, targets=[0.0, 1.0])
        found = told.one(OutputLossMismatch())
        assert function in found.explanation.lower()
        said = f"Remove the function that is called after fc2, such as a {function}."
        assert (found.remedy.text, found.remedy.action) == (said, None)

    @pytest.mark.parametrize(("losses", "severity"), [("flat", "error"), ("falling", None)])
    def test_classes_without_negative_logits_matter_if_nothing_is_learned(self, story, flat, falling, losses, severity):
        told = outputs(story(ending("ReLU"), loss_fn="CrossEntropyLoss", classes=4), 0.0, 5.0)
        told.losses({"flat": flat(200), "falling": falling(200)}[losses])
        found = told.find(OutputLossMismatch())
        assert [one.severity for one in found] == ([] if severity is None else [severity])
        assert all("gets no gradient" in one.explanation for one in found)
        assert all(one.remedy.arguments == {"layer": "out"} for one in found)

    @pytest.mark.parametrize(
        ("low", "high", "mean", "is_bad"),
        [
            (-4.5, -3.9, -4.17, True),  # a softmax over a batch of 64
            (-3.0, -0.1, -0.9, True),  # numbers that were never normalised: their logs cannot be that high on average
            (-3.0, 0.0, -0.9, False),  # padded with zeros
            (-1.2, -1.0, -1.1, False),
            (-9.0, -0.01, -3.0, False),
        ],
    )
    def test_log_probabilities_of_a_row_must_be_able_to_sum_to_one(self, story, low, high, mean, is_bad):
        told = outputs(story(ending("LogSoftmax"), loss_fn="NLLLoss", classes=3), low, high)
        found = told.add(signals.LOSS_INPUT_MEAN, output=mean).find(OutputLossMismatch())
        assert ["do not sum to 1" in one.explanation for one in found] == [True] * is_bad

    @pytest.mark.parametrize(
        ("highest", "classes", "is_bad"),
        [
            ([0.575] * 20, 3, True),  # of 3 classes, e / (e + 2) = 0.576 is the most
            ([0.57] * 10 + [0.6] * 10, 3, False),
            ([0.4] * 20, 3, False),  # a model that is not sure
            ([0.575] * 9, 3, False),
            ([0.231] * 20, 10, True),
        ],
    )
    def test_a_log_softmax_of_probabilities(self, story, highest, classes, is_bad):
        told = story(ending("LogSoftmax"), loss_fn="NLLLoss", classes=classes)
        steps = np.repeat(np.arange(1, len(highest) + 1), 2)
        told.add(signals.LOSS_INPUT_RANGE, steps, output=np.log(np.c_[np.full(len(highest), 0.02), highest].ravel()))
        found = told.find(OutputLossMismatch())
        assert ["Softmax is applied twice" in one.explanation for one in found] == [True] * is_bad

    @pytest.mark.parametrize("kind", ["NLLLoss", "KLDivLoss", "CTCLoss"])
    def test_logits_for_a_loss_that_wants_logarithms(self, story, kind):
        told = outputs(story(loss_fn=kind, classes=4), -2.0, 3.0, [-1.0, 1.0], count=1)
        found = told.one(OutputLossMismatch())
        assert f"{kind} wants logarithms of probabilities" in found.explanation
        assert found.remedy.action is None  # there is no activation to replace

    @pytest.mark.parametrize(
        ("kind", "shapes", "is_bad"),
        [
            ("MSELoss", ([32, 1], [32]), True),
            ("HuberLoss", ([32], [32, 1]), True),
            ("MSELoss", ([32, 1], [32, 1]), False),
            ("CrossEntropyLoss", ([32, 4], [32]), False),
            ("MyLoss", ([32, 1], [32]), False),
            (None, ([32, 1], [32]), False),
        ],
    )
    def test_shapes_that_differ(self, story, kind, shapes, is_bad):
        known = dict(zip(("output", "target"), shapes, strict=True))
        found = outputs(story(loss_fn=kind, loss_shapes=known), -2.0, 3.0, count=1).find(OutputLossMismatch())
        assert [one.layer for one in found] == ([None] if is_bad else [])
        assert all("[32, 1]" in one.explanation and "[32]" in one.explanation for one in found)

    def test_a_sigmoid_before_a_loss_that_wants_it_is_fine(self, story):
        told = outputs(story(ending("Sigmoid"), loss_fn="BCELoss"), 0.1, 0.9, targets=[0.0, 1.0])
        assert told.find(OutputLossMismatch()) == []

    def test_small_logits_at_first_are_fine(self, story):
        told = outputs(story(loss_fn="BCEWithLogitsLoss"), 0.1, 0.9, count=5)
        assert told.find(OutputLossMismatch()) == []

    @pytest.mark.parametrize(
        ("last", "targets", "is_bad"),
        [
            ("ReLU", [-3.0, 1.0], True),
            ("ReLU", [0.0, 100.0], False),
            ("Sigmoid", [0.0, 5.0], True),
            ("Tanh", [-1.0, 1.0], False),
            ("Tanh", [-1.05, 1.05], False),
            ("Linear", [-1e9, 1e9], False),
        ],
    )
    def test_targets_must_be_in_reach(self, story, last, targets, is_bad):
        told = outputs(story(ending(last), loss_fn="MSELoss"), 0.2, 0.8, targets=targets)
        found = told.find(OutputLossMismatch())
        assert [one.layer for one in found] == (["out"] if is_bad else [])

    def test_a_relu_that_is_called_as_a_function_is_seen_by_its_zeros(self, story):
        told = outputs(story(loss_fn="MSELoss"), 0.0, 0.8, targets=[-3.0, 1.0])
        assert "relu" in told.one(OutputLossMismatch()).explanation

    @pytest.mark.parametrize(("low", "high", "kind"), [(0.3, 0.999, "sigmoid"), (-0.995, 0.7, "tanh")])
    def test_other_functions_are_seen_by_their_bounds(self, story, low, high, kind):
        told = outputs(story(loss_fn="MSELoss"), low, high, targets=[-30.0, 10.0])
        assert f"the last activation, {kind}" in told.one(OutputLossMismatch()).explanation
        inside = outputs(story(loss_fn="MSELoss"), low * 0.9, high * 0.9, targets=[-30.0, 10.0])
        assert inside.find(OutputLossMismatch()) == []

    def test_the_last_layer_is_the_one_that_ran_last(self, story):
        told = outputs(story(ending("Sigmoid"), loss_fn="MSELoss"), 0.2, 0.8, targets=[0.0, 5.0])
        told.facts.ran = ["out", "fc0", "act0", "fc1"]
        assert told.find(OutputLossMismatch()) == []

    @pytest.mark.parametrize("loss", ["CTCLoss", "KLDivLoss", "HingeEmbeddingLoss", "PoissonNLLLoss", "OwnLoss"])
    def test_other_losses_do_not_want_outputs_to_be_targets(self, story, loss):
        told = outputs(story(ending("LogSoftmax"), loss_fn=loss), -5.0, -0.1, targets=[0.0, 5.0])
        assert told.find(OutputLossMismatch()) == []

    def test_classes_are_no_numbers_to_reach(self, story):
        told = outputs(story(ending("ReLU"), loss_fn="CrossEntropyLoss", classes=10), 0.0, 5.0, targets=[0, 9])
        assert told.find(OutputLossMismatch()) == []

    def test_the_tolerance_can_be_changed(self, story):
        told = outputs(story(loss_fn="CrossEntropyLoss"), 0.0, 0.4, [0.99, 1.01])
        assert told.find(OutputLossMismatch()) == []
        assert told.one(OutputLossMismatch(tolerance=0.02)).severity == "error"


class TestUnrepresentativeBatches:
    @staticmethod
    def classes(story, variety, counts=(100,) * 10, batch=32.0, **facts):
        told = story(target_counts=list(counts), classes=len(counts), batch=batch, **facts)
        return told.add(signals.PERPLEXITY, target=variety)

    def test_batches_of_one_class(self, story):
        found = self.classes(story, 1.2).one(UnrepresentativeBatches())
        assert (found.layer, found.step, found.detected_at, found.severity) == (None, 1, 5, "warning")
        assert found.remedy.action == "shuffle"

    @pytest.mark.parametrize(
        "told",
        [
            {"variety": 9.0},
            {"variety": 1.0, "batch": 1.0},  # a batch of one sample has one class
            {"variety": 1.9, "batch": 2.0},
            {"variety": [1.0] * 6, "counts": [50, 50], "batch": 2.0},  # which happens by chance
            {"variety": np.tile([1.0, 2.0], 20), "counts": [50, 50], "batch": 2.0},
            {"variety": 1.4, "counts": [900, 100]},  # most of the data is one class
        ],
    )
    def test_shuffled_batches_are_fine(self, story, told):
        assert self.classes(story, **told).find(UnrepresentativeBatches()) == []

    def test_a_step_of_many_batches_of_one_sample_is_fine(self, story):
        told = story(target_counts=[80, 80], classes=2, batch=16.0)
        told.add(signals.PERPLEXITY, np.repeat(np.arange(1, 11), 16), target=np.ones(160))
        assert told.find(UnrepresentativeBatches()) == []

    def test_batches_of_one_class_of_two(self, story):
        found = self.classes(story, 1.0, counts=[50, 50], batch=16.0).one(UnrepresentativeBatches())
        assert (found.step, found.remedy.action) == (1, "shuffle")

    def test_since_data_come_in_an_order(self, story):
        found = self.classes(story, np.where(np.arange(1, 41) < 15, 9.0, 1.2)).one(UnrepresentativeBatches())
        assert (found.step, found.detected_at) == (15, 19)

    @pytest.mark.parametrize(
        ("counts", "steps", "is_bad"),
        [
            ((0, 2000, 0, 0, 0, 0, 0, 0), 100, True),
            ((0, 2000, 0, 0, 0, 0, 0, 0), 99, False),  # others may come
            ((2000, 0, 0), 100, False),  # candidates to compare: no layer has a unit for each
            ((2000, 1, 0, 0, 0, 0, 0, 0), 100, False),
        ],
    )
    def test_labels_that_are_all_the_same(self, story, falling, counts, steps, is_bad):
        told = self.classes(story, 1.0, counts).losses(falling(steps))
        found = [one for one in told.find(UnrepresentativeBatches()) if one.severity == "warning"]
        assert ["All 2,000 targets that were seen are of class 1." in one.explanation for one in found] == [
            True
        ] * is_bad

    def test_a_model_that_says_only_the_most_frequent_class(self, story):
        told = self.classes(story, 1.05, counts=[990, 10], predicted_counts=[1000, 0])
        assert told.one(UnrepresentativeBatches()).severity == "info"  # there is hardly more to say
        told = self.classes(story, 1.7, counts=[900, *[30] * 9], predicted_counts=[1000, *[0] * 9])
        found = told.one(UnrepresentativeBatches())
        assert "The most frequent of 10 classes has 77 % of all targets" in found.explanation
        assert found.remedy.action is None

    def test_a_model_that_is_lost_says_nothing_about_rare_classes(self, story):
        told = self.classes(story, 1.7, counts=[900, *[30] * 9], predicted_counts=[1000, *[0] * 9])
        found = told.losses([np.nan] * 40).checks([np.nan], [40]).one(UnrepresentativeBatches())
        assert (found.severity, found.confidence) == ("info", 0.6)

    def test_of_many_classes_such_as_letters_some_are_always_rare(self, story):
        counts = (10_000 / np.arange(1, 66)).astype(int).tolist()
        told = self.classes(story, 20.0, counts=counts, predicted_counts=[1000, *[0] * 64])
        told.losses([4.0] * 20).checks([20.0], [20])  # which is worse than guessing
        assert told.find(UnrepresentativeBatches()) == []
        assert told.one(UnrepresentativeBatches(few=100)).severity == "warning"

    def test_rare_classes_are_worth_an_info(self, story):
        found = self.classes(story, 1.4, counts=[900, 50, 50], predicted_counts=[850, 75, 75]).one(
            UnrepresentativeBatches()
        )
        assert found.severity == "info"
        assert "18 times as frequent as the rarest" in found.explanation

    def test_few_classes_more_frequent_are_fine(self, story):
        told = self.classes(story, 4.0, counts=[700, 500, 500, 500, 500], predicted_counts=[1000, 0, 0, 0, 0])
        assert told.find(UnrepresentativeBatches()) == []

    def test_four_steps_are_too_few(self, story):
        told = story(target_counts=[100] * 10, batch=32.0).add(signals.PERPLEXITY, target=[1.2] * 4)
        assert told.find(UnrepresentativeBatches()) == []

    def test_thresholds_can_be_changed(self, story):
        told = self.classes(story, 3.0)
        assert told.find(UnrepresentativeBatches(share=0.2)) == []
        assert told.find(UnrepresentativeBatches(expected=0.2)) == []
        assert len(told.find(UnrepresentativeBatches())) == 1
