"""What all preprocessors with accumulators have in common."""

import copy
import pickle

import pytest
import torch
from torch import nn

from monitorch.engine.columns import ACTIVE, LARGEST, SIZE, SQUARES
from monitorch.engine.ranks import merged
from monitorch.numerical import RunningMeanVar
from monitorch.numerical.waiting import PACK_AT, HostCopy
from monitorch.preprocessor import (
    ExplicitCall,
    GradientActivation,
    GradientGeometry,
    LossModule,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterCond,
    ParameterDifferenceGeometry,
    ParameterNorm,
)
from monitorch.preprocessor.accumulating import AccumulatingPreprocessor
from monitorch.preprocessor.outputs import OutputPreprocessor


def forward(preprocessor, name, tensor):
    preprocessor.process_fw(name, nn.ReLU(), None, tensor)


def backward(preprocessor, name, tensor):
    preprocessor.process_bw(name, nn.ReLU(), (None,), (tensor,))


def one_tensor(preprocessor, name, tensor):
    preprocessor.process_tensor(name, tensor)


def module(preprocessor, name, tensor):
    holder = nn.Module()
    holder.weight = nn.Parameter(tensor)
    preprocessor.process_module(name, holder)


def pushed(preprocessor, name, tensor):
    preprocessor.push_running(name, tensor.sum())


def loss(preprocessor, name, tensor):
    forward(preprocessor, name, tensor.sum())


def named_loss(inplace):
    preprocessor = LossModule(inplace, True)
    preprocessor.set_loss_strs("a", "b")
    return preprocessor


# how to build one, how to hand it a tensor, how many accumulators it has by name, the name of one of them
EVERY = {
    "OutputActivation": (lambda inplace: OutputActivation(True, inplace, False, False), forward, 2, "death"),
    "OutputActivation, no death": (
        lambda inplace: OutputActivation(False, inplace, False, False),
        forward,
        1,
        "activation",
    ),
    "OutputNorm": (lambda inplace: OutputNorm(True, inplace, False, False), forward, 1, "value"),
    "GradientActivation": (lambda inplace: GradientActivation(True, inplace), one_tensor, 2, "death"),
    "GradientGeometry": (lambda inplace: GradientGeometry(True, True, inplace), one_tensor, 2, "correlation"),
    "GradientGeometry, no correlation": (
        lambda inplace: GradientGeometry(False, True, inplace),
        one_tensor,
        1,
        "norm",
    ),
    "OutputGradientGeometry": (lambda inplace: OutputGradientGeometry(True, False, inplace), backward, 2, "norm"),
    "ParameterDifferenceGeometry": (
        lambda inplace: ParameterDifferenceGeometry(True, False, inplace),
        one_tensor,
        2,
        "norm",
    ),
    "ParameterNorm": (lambda inplace: ParameterNorm(["weight"], True, inplace), module, {"weight"}, "weight"),
    "ParameterCond": (lambda inplace: ParameterCond(["weight"], inplace), module, {"weight"}, "weight"),
}
BOTH = pytest.mark.parametrize("inplace", [True, False])
ALL = pytest.mark.parametrize(("build", "hand_over", "shape", "statistic"), EVERY.values(), ids=EVERY)


def shape_of(value):
    if isinstance(value, dict):
        return set(value)
    return len(value) if isinstance(value, tuple) else 1


@ALL
@BOTH
def test_a_name_shows_up_with_its_first_sample(build, hand_over, shape, statistic, inplace):
    preprocessor = build(inplace)
    assert preprocessor.value == {}
    for name in ("late", "early"):
        for _ in range(2):
            hand_over(preprocessor, name, torch.randn(3, 4))
        assert name in preprocessor.value
    assert list(preprocessor.value) == ["late", "early"]
    assert shape_of(preprocessor.value["late"]) == shape
    accumulator = preprocessor.series(statistic)["late"]
    assert isinstance(accumulator, RunningMeanVar if inplace else list)
    assert len(accumulator) == 2 - isinstance(preprocessor, ParameterDifferenceGeometry)


@ALL
@BOTH
def test_reset_starts_afresh_and_spares_what_was_handed_out(build, hand_over, shape, statistic, inplace):
    preprocessor = build(inplace)
    for _ in range(2):
        hand_over(preprocessor, "x", torch.randn(3, 4))
    before = preprocessor.series(statistic)["x"]
    samples = len(before)
    preprocessor.reset()
    assert preprocessor.value == {}
    hand_over(preprocessor, "x", torch.randn(3, 4))
    assert len(before) == samples
    assert len(preprocessor.series(statistic)["x"]) == 1


@ALL
@BOTH
def test_cleared_ones_are_as_new(build, hand_over, shape, statistic, inplace):
    first, second = torch.randn(2, 3, 4)
    used, new = build(inplace), build(inplace)
    hand_over(used, "x", second)
    used.clear()
    for preprocessor in (used, new):
        hand_over(preprocessor, "x", first)
        hand_over(preprocessor, "x", second)
    assert used.value == new.value


@ALL
@BOTH
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_hold_the_same_numbers(build, hand_over, shape, statistic, inplace, clone):
    preprocessor = build(inplace)
    for _ in range(2):
        hand_over(preprocessor, "x", torch.randn(3, 4))
    assert clone(preprocessor).value == preprocessor.value


WITHOUT_WAITING = {
    **{name: entry[:2] for name, entry in EVERY.items() if name != "ParameterCond"},  # decomposes on the host
    "ExplicitCall": (lambda inplace: ExplicitCall("a", "b"), pushed),
    "LossModule": (named_loss, loss),
}
DEVICES = ["meta", "cuda"] if torch.cuda.is_available() else ["meta"]


@pytest.mark.parametrize(("build", "hand_over"), WITHOUT_WAITING.values(), ids=WITHOUT_WAITING)
@BOTH
def test_processing_waits_for_nothing(build, hand_over, inplace, host_syncs):
    preprocessor, tensor = build(inplace), torch.randn(3, 4)
    with host_syncs() as syncs:
        for _ in range(PACK_AT + 2):
            hand_over(preprocessor, "x", tensor)
    assert syncs.operators["aten::stack"] > 0  # samples were packed meanwhile
    assert syncs.waits == 0


@pytest.mark.parametrize(("build", "hand_over"), WITHOUT_WAITING.values(), ids=WITHOUT_WAITING)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@BOTH
def test_processing_never_reads_from_a_device(build, hand_over, inplace, device):
    preprocessor, tensor = build(inplace), torch.ones(3, 4, device=device)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            hand_over(preprocessor, "x", tensor)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    if device == "meta":
        with pytest.raises(NotImplementedError, match="meta"):
            _ = preprocessor.value
    else:
        assert preprocessor.value


@BOTH
def test_reading_all_names_takes_one_copy(inplace, host_syncs):
    preprocessor = OutputNorm(False, inplace, False, False)
    for index in range(50):
        forward(preprocessor, str(index), torch.full((2, 4), float(index)))
    with host_syncs() as syncs:
        assert len(preprocessor.value) == 50
    assert syncs.operators["aten::cat"] == 1


@ALL
@BOTH
def test_ranks_together_have_the_samples_of_all(build, hand_over, shape, statistic, inplace):
    ranks = [build(inplace) for _ in range(3)]
    for rank, preprocessor in enumerate(ranks):
        for name in ["shared", f"only on {rank}"]:
            for tensor in torch.randn(3, 3, 4):
                hand_over(preprocessor, name, tensor)
    samples = [preprocessor.series(statistic) for preprocessor in ranks]
    ranks[1].merge_ranks(merged({rank: preprocessor.payload() for rank, preprocessor in enumerate(ranks)}))
    whole = ranks[1].series(statistic)
    assert set(whole) == {"shared", "only on 0", "only on 1", "only on 2"}
    assert whole["only on 2"] == samples[2]["only on 2"]
    assert len(whole["shared"]) == sum(len(rank["shared"]) for rank in samples)
    if inplace:
        mean = sum(rank["shared"].mean for rank in samples) / 3
        assert whole["shared"].mean == pytest.approx(mean)
    else:
        assert whole["shared"] == [sample for rank in samples for sample in rank["shared"]]


@BOTH
def test_a_parameter_of_one_rank_only_is_kept(inplace):
    first, second = (ParameterNorm(["weight", "bias"], False, inplace) for _ in range(2))
    first.process_module("x", nn.Linear(2, 2, bias=False))
    second.process_module("x", nn.Linear(2, 2))
    expected = second.value["x"]["bias"]
    first.merge_ranks(merged({0: first.payload(), 1: second.payload()}))
    assert len(first.value["x"]["weight"]) == 2
    assert first.value["x"]["bias"] == expected


def test_a_class_may_name_its_own_statistics():
    class Sizes(GradientGeometry):
        statistics = ("size", "squares")

        def derive(self, rows):
            return rows[SIZE], rows[SQUARES]

    sizes = Sizes(correlation=False, normalize=False, inplace=True)
    sizes.process_tensor("weight", torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    sizes.process_tensor("bias", torch.tensor([1.0, 2.0]))
    found = {name: tuple(kept.mean for kept in value) for name, value in sizes.value.items()}
    assert found == {"weight": (4.0, 25.0), "bias": (2.0, 5.0)}
    sizes.statistics = ("size",)
    sizes.process_tensor("bias", torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="name statistics in the class"):
        _ = sizes.value


BAD_DERIVES = {
    "of rates": (
        lambda rows: rows[ACTIVE],
        "ACTIVE was not requested.* it is in rows of: where rates",
    ),
    "on request": (lambda rows: rows[LARGEST], r"it is in rows of: where it is wanted: Request\(columns=...\)"),
    "one number for all": (lambda rows: rows[SIZE].sum(), r"one number for each of 1 rows, not \(\)"),
    "too many": (lambda rows: (rows[SIZE], rows[SIZE]), "samples of 2 statistics, not 1"),
}


@pytest.mark.parametrize(("derive", "message"), BAD_DERIVES.values(), ids=BAD_DERIVES)
def test_what_is_not_there_is_never_silently_zero(derive, message):
    class Wrong(OutputPreprocessor):
        def derive(self, rows):
            return derive(rows)

    wrong = Wrong()
    wrong.process_fw("layer", torch.nn.ReLU(), None, torch.ones(2, 3))
    with pytest.raises(ValueError, match=message):
        _ = wrong.value


# tensors of several layers that become samples together


class Steps:
    """A log, and the present step."""

    def __init__(self):
        self.step, self.kept = 0, []

    def now(self):
        return self.step

    def keep(self, keys, column, places, steps, samples):
        names = [keys[place] for place in places]
        self.kept += zip(names, [column] * len(names), steps.tolist(), samples.tolist(), strict=True)


class Doubled(AccumulatingPreprocessor):
    """The sum of a tensor, and twice that."""

    statistics = ("sum", "twice")

    def __init__(self):
        super().__init__(inplace=True)

    def process_tensor(self, name, tensor):
        self._gather(name, tensor, common=(2,))

    def _handle(self, kept, keys, steps, columns, *common):
        sums = columns[0].sum(1)
        kept.series.add_all(keys, torch.stack([sums, sums * common[0]], 1), steps)


def test_samples_that_are_made_later_belong_to_the_step_they_were_gathered_in():
    preprocessor, log = Doubled(), Steps()
    preprocessor.log_to(log)
    for log.step in (3, 5):
        for name in ("a", "b"):
            preprocessor.process_tensor(name, torch.full((2,), float(log.step)))
    log.step = 9
    assert preprocessor.value["a"][1].mean == 16.0
    expected = {
        (name, column, step, (1 + column) * 2.0 * step) for name in "ab" for column in (0, 1) for step in (3, 5)
    }
    assert (set(log.kept), len(log.kept)) == (expected, 8)


def test_what_is_gathered_belongs_to_its_tick():
    preprocessor = Doubled()
    preprocessor.process_tensor("a", torch.ones(2))
    kept = preprocessor.release()
    preprocessor.process_tensor("a", torch.ones(3))
    HostCopy(preprocessor.pending(kept)).deliver()
    with preprocessor.showing(kept):
        preprocessor.finish()
        assert preprocessor.value["a"][0].mean == 2.0
    assert preprocessor.value["a"][0].mean == 3.0


def test_a_copy_has_what_was_gathered():
    preprocessor = Doubled()
    preprocessor.process_tensor("a", torch.ones(2))
    for again in (copy.deepcopy(preprocessor), pickle.loads(pickle.dumps(preprocessor))):
        assert again.value["a"][1].mean == 4.0


def test_what_was_gathered_is_forgotten_with_the_model():
    preprocessor = Doubled()
    preprocessor.process_tensor("a", torch.ones(2))
    preprocessor.clear()
    assert preprocessor.value == {}
