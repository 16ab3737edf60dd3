"""Numbers of what enters a loss, compared with NumPy; classes of a batch and of a tick."""

import copy
import pickle

import numpy as np
import pytest
import torch

from monitorch.engine.ranks import merged
from monitorch.numerical.waiting import HostCopy
from monitorch.preprocessor import data
from monitorch.preprocessor.loss_inputs import MOST_CLASSES, LossInputs, class_dimension


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int64)


def perplexity(labels):
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return np.exp(-np.sum(shares * np.log(shares)))


@pytest.fixture
def batches():
    stream = torch.Generator().manual_seed(1)
    return [
        (torch.randn(40, 5, generator=stream), torch.randint(0, high, (40,), generator=stream)) for high in (5, 3, 1)
    ]


@pytest.fixture
def inputs(batches):
    found = LossInputs()
    for output, target in batches:
        found.process_loss({"output": output, "target": target})
    return found


@pytest.mark.parametrize(
    ("output", "target", "dimension"),
    [
        (torch.zeros(4, 3), ints(4), 1),
        (torch.zeros(3), ints(), 0),
        (torch.zeros(4, 3, 8, 9), ints(4, 8, 9), 1),
        (torch.zeros(4, 8, 3), ints(4, 8), 2),  # many own losses flatten it themselves
        (torch.zeros(4, 4, 4), ints(4, 4), 1),
        (torch.zeros(4, 3), torch.zeros(4), None),
        (torch.zeros(4, 3), ints(4, 3), None),
        (torch.zeros(4, 3), ints(5), None),
        (torch.zeros(4), ints(4), None),
    ],
)
def test_where_classes_are(output, target, dimension):
    assert class_dimension(output, target) == dimension


def test_perplexity_of_each_batch_and_of_all(inputs, batches):
    for name, labels in (("target", [y for _, y in batches]), ("output", [x.argmax(1) for x, _ in batches])):
        of_batches = [perplexity(own.numpy()) for own in labels]
        found = inputs.value[name]["perplexity"]
        assert [found.mean, found.min_, found.max_] == pytest.approx(
            [np.mean(of_batches), min(of_batches), max(of_batches)]
        )
        whole = np.concatenate([own.numpy() for own in labels])
        assert inputs.variety()[name] == {
            "seen": len(np.unique(whole)),
            "perplexity": pytest.approx(perplexity(whole)),
        }
        counts = np.bincount(whole)
        assert inputs.ratio()[name] == {"value": pytest.approx(counts.max() / counts[counts > 0].min())}
        assert inputs.counts()[name].tolist() == np.bincount(whole, minlength=5).tolist()


def test_range_moments_and_row_sums(inputs, batches):
    outputs = [x.double().numpy() for x, _ in batches]
    found = inputs.value["output"]
    assert found["mean"].mean == pytest.approx(np.mean(outputs), abs=1e-7)
    assert found["std"].mean == pytest.approx(np.mean([x.std() for x in outputs]))
    assert (found["range"].min_, found["range"].max_) == (np.min(outputs), np.max(outputs))
    sums = [x.sum(axis=1) for x in outputs]
    assert (found["row sum"].min_, found["row sum"].max_) == pytest.approx((np.min(sums), np.max(sums)), rel=1e-6)
    assert set(inputs.value["target"]) == {"range", "perplexity", "ignored"}


def test_rows_of_probabilities_sum_to_one():
    inputs = LossInputs()
    inputs.process_loss({"output": torch.randn(3, 7, 4).softmax(1), "target": ints(3, 4)})
    found = inputs.value["output"]["row sum"]
    assert (found.min_, found.max_) == pytest.approx((1, 1), abs=1e-6)


@pytest.mark.parametrize(
    ("named", "statistics"),
    [
        ({"output": torch.ones(4, 1), "target": torch.ones(4, 1)}, {"output": 4, "target": 4}),
        ({"output": torch.ones(4, 2), "target": torch.ones(4, 2)}, {"output": 5, "target": 4}),
        ({"output": torch.ones(4), "target": torch.ones(4)}, {"output": 5, "target": 4}),
        ({"output": torch.tensor(1.0), "target": torch.tensor(1.0)}, {"output": 4, "target": 4}),
        ({"output": torch.ones(4, 2), "target": ints(4, 2)}, {"output": 5, "target": 1}),
        ({"output": torch.ones(4, 2)}, {"output": 5}),
        ({"target": torch.ones(4, 2)}, {"target": 4}),
        ({"output": ints(4, 2), "target": ints(4)}, {"output": 1, "target": 1}),
    ],
)
def test_what_is_no_class_is_not_counted(named, statistics):
    inputs = LossInputs()
    inputs.process_loss(named)
    assert {name: len(found) for name, found in inputs.value.items()} == statistics
    assert inputs.shares() == inputs.variety() == inputs.ratio() == {}


@pytest.mark.parametrize(("ignore_index", "counts"), [(None, [1, 2, 0]), (-100, [1, 2, 0]), (0, [0, 2, 0])])
def test_ignored_targets_do_not_count(ignore_index, counts):
    inputs = LossInputs()
    inputs.process_loss({"output": torch.eye(3)[[0, 0, 0, 0]], "target": torch.tensor([0, 1, -100, 1])}, ignore_index)
    assert inputs.counts()["target"].tolist() == counts
    assert inputs.counts()["output"].tolist() == [sum(counts), 0, 0]
    assert inputs.value["target"]["ignored"].mean == 1 - sum(counts) / 4


def test_a_batch_without_targets_has_no_perplexity():
    inputs = LossInputs()
    inputs.process_loss({"output": torch.eye(2), "target": torch.tensor([-100, -100])})
    assert inputs.value["target"]["perplexity"].nonfinite == 1
    assert inputs.shares() == inputs.variety() == inputs.ratio() == {}


def test_too_many_classes_are_left_out_and_the_rest_is_there():
    inputs = LossInputs()
    inputs.process_loss({"output": torch.zeros(2, MOST_CLASSES + 1), "target": torch.tensor([0, 1])})
    assert inputs.counts() == {}
    assert inputs.value["output"]["row sum"].mean == 0
    assert "perplexity" not in inputs.value["target"]


def test_of_a_large_output_every_so_many_th_sample_is_read_with_its_target(monkeypatch):
    monkeypatch.setattr(data, "MOST", 64)
    inputs = LossInputs()
    output, target = torch.rand(40, 5), torch.arange(40) % 5
    inputs.process_loss({"output": output, "target": target})
    kept = output[::4].double()
    assert inputs.value["output"]["mean"].mean == pytest.approx(kept.mean().item(), rel=1e-6)
    assert inputs.counts()["target"].tolist() == np.bincount(target[::4], minlength=5).tolist()
    assert inputs.counts()["output"].tolist() == np.bincount(kept.argmax(1), minlength=5).tolist()


def labelled(inputs, *labels, size=6):
    target = torch.tensor(labels)
    inputs.process_loss({"output": torch.zeros(len(labels), size), "target": target})


def test_shares_of_few_classes_are_all_shown():
    inputs = LossInputs()
    labelled(inputs, 1, 1, 4, 0)
    assert inputs.shares()["target"] == {f"class {n}": share for n, share in enumerate([0.25, 0.5, 0, 0, 0.25, 0])}


def test_of_many_classes_the_first_frequent_ones_keep_their_lines():
    inputs = LossInputs(2)
    labelled(inputs, 5)
    assert inputs.shares()["target"] == {"class 5": 1, "others": 0}
    inputs.reset()
    labelled(inputs, 3, 2, 2, 1)
    assert inputs.shares()["target"] == {"class 2": 0.5, "class 5": 0, "others": 0.5}
    assert inputs.shares()["output"] == {"class 2": 0, "class 5": 0, "others": 1}  # all are class 0
    inputs.reset()
    labelled(inputs, 3, 3, 3, 2)
    assert list(inputs.shares()["target"]) == ["class 2", "class 5", "others"]


def test_a_change_of_the_number_of_classes_adds_up():
    inputs = LossInputs()
    labelled(inputs, 0, 1, size=2)
    labelled(inputs, 1, 2, size=3)
    assert inputs.counts()["target"].tolist() == [1, 2, 1]


def test_a_tick_takes_what_came_before_it():
    inputs = LossInputs()
    labelled(inputs, 0, 0, 1)
    kept = inputs.release()
    labelled(inputs, 5)
    copied = HostCopy(inputs.pending(kept))
    with inputs.showing(kept):
        copied.deliver()
        inputs.finish()
        assert inputs.counts()["target"].tolist() == [2, 1, 0, 0, 0, 0]
        assert inputs.value["target"]["perplexity"].mean == pytest.approx(perplexity(np.array([0, 0, 1])))
    assert inputs.counts()["target"].tolist() == [0, 0, 0, 0, 0, 1]


def test_processes_add_their_counts_up():
    one, other = LossInputs(), LossInputs()
    labelled(one, 0, 0)
    labelled(other, 1, 1)
    payloads = {0: one.payload(), 1: other.payload()}
    for inputs in (one, other):
        inputs.merge_ranks(merged(payloads))
        assert inputs.variety()["target"] == {"seen": 2, "perplexity": pytest.approx(2)}
        assert inputs.value["target"]["perplexity"].count == 2
        assert inputs.value["target"]["perplexity"].max_ == 1


@pytest.mark.parametrize("how", [copy.deepcopy, lambda inputs: pickle.loads(pickle.dumps(inputs)), "state"])
def test_copies_and_saved_states_go_on(how):
    inputs = LossInputs(2)
    labelled(inputs, 5, 5, 3)
    assert list(inputs.shares()["target"]) == ["class 3", "class 5", "others"]
    if how == "state":
        again = LossInputs(2)
        labelled(again, 0)
        again.load_state_dict(inputs.state_dict())
    else:
        again = how(inputs)
    labelled(again, 0, 0, 0)
    assert again.counts()["target"].tolist() == [3, 0, 0, 1, 0, 2]
    assert list(again.shares()["target"]) == ["class 3", "class 5", "others"]
    assert again.value["target"]["perplexity"].count == 2
    assert inputs.counts()["target"].tolist() == [0, 0, 0, 1, 0, 2]


def test_another_model_begins_with_nothing():
    inputs = LossInputs(2)
    labelled(inputs, 5, 4)
    inputs.shares()
    inputs.clear()
    assert inputs.counts() == {}
    assert (inputs.shapes, inputs.has_classes) == ({}, False)
    labelled(inputs, 0, 1)
    assert list(inputs.shares()["target"]) == ["class 0", "class 1", "others"]


def test_nothing_waits_for_the_device(host_syncs, batches):
    inputs = LossInputs()
    with host_syncs() as counter:
        for output, target in batches:
            inputs.process_loss({"output": output, "target": target}, -100)
    assert counter.operators
    assert counter.waits == 0
