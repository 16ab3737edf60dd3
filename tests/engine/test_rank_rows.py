"""Rows of several processes: put together, those of parts are those of the whole."""

import numpy as np
import pytest
import torch

from monitorch.engine.buffers import METER, PART, STEP, TAG, Info
from monitorch.engine.columns import (
    BATCH,
    CHANNELS,
    DEAD,
    DOT,
    FOLLOWS,
    LARGEST,
    NORMS,
    SIZE,
    SQUARES,
    UNIT,
    WIDTH,
    Column,
    Merge,
)
from monitorch.engine.distributed_tensors import OWN, SHARED
from monitorch.engine.kernels import reference
from monitorch.engine.meter import Meter, Request
from monitorch.engine.rank_rows import RankMerge
from monitorch.engine.reductions import Seat, replay


class Process:
    """One process with one meter, and the merged rows that it gets."""

    def __init__(self):
        self.merge, self.meter, self.previous = RankMerge(self.receive), Meter(0, "layer", Request()), None
        self.infos, self.rows = np.zeros((0, PART + 1), int), np.zeros((0, WIDTH))
        self.merge.register(self.meter, "gradient", "layer")

    def receive(self, infos, rows):
        self.infos, self.rows = np.concatenate([self.infos, infos]), np.concatenate([self.rows, rows])

    def see(self, tensor, step, part=OWN, tag=0):
        self.keep(reference.geometry(tensor, self.previous, None), Info(0, step, tag, part))
        self.previous = tensor

    def see_output(self, tensor, step, tag=3, alive=None):
        self.keep(reference.output(tensor, 1, 0.0), Info(0, step, tag), alive)

    def keep(self, row, info, alive=None):
        self.merge.keep(np.array([info]), row.numpy()[None], {} if alive is None else {0: alive})

    @property
    def tags(self):
        return self.infos[:, TAG].tolist()

    def norms(self):
        return np.sqrt(self.rows[:, SQUARES]) * self.rows[:, UNIT]

    def cosines(self):
        sizes = np.sqrt(self.rows[:, SQUARES])
        return [dot / (sizes[i] * sizes[i - 1]) for i, dot in enumerate(self.rows[:, DOT]) if self.rows[i, FOLLOWS]]


def meet(*processes):
    seats = [Seat(number, len(processes)) for number in range(len(processes))]
    programs = [rank.merge.merge_ranks(rank.merge.payload(), seat) for rank, seat in zip(processes, seats, strict=True)]
    for rank, merged in zip(processes, replay(programs), strict=True):
        rank.merge.hand_out(merged)
    first, *others = processes
    assert all(np.array_equal(other.rows, first.rows) for other in others if other.merge._meters)
    return first


def cosine(first, second):
    return float((first / first.norm()).flatten() @ (second / second.norm()).flatten())


@pytest.fixture
def processes():
    return [Process() for _ in range(3)]


@pytest.mark.parametrize("meets_after", [1, 2, 4])
@pytest.mark.parametrize("scales", [(1, 1, 1, 1), (1e200, 1e-3, 1e-200, 1e180)], ids=["usual", "extreme"])
def test_parts_of_a_tensor_are_the_tensor(scales, meets_after, processes):
    wholes = [torch.randn(5, 4, dtype=torch.float64) * scale for scale in scales]
    for step, whole in enumerate(wholes):
        for rank, part in zip(processes, (whole[:1] * 1e-3, whole[1:3], whole[3:]), strict=True):
            rank.see(part, step)
        if (step + 1) % meets_after == 0:
            found = meet(*processes)
    wholes = [torch.cat([whole[:1] * 1e-3, whole[1:]]) for whole in wholes]
    expected = [(whole / whole.abs().max()).norm().item() * whole.abs().max().item() for whole in wholes]
    assert found.norms() == pytest.approx(expected, rel=1e-12)
    assert found.rows[:, LARGEST] == pytest.approx([whole.abs().max().item() for whole in wholes])
    assert found.rows[:, SIZE].tolist() == [20.0] * 4
    pairs = zip(wholes[1:], wholes, strict=False)
    scaled = [(now / now.abs().max(), then / then.abs().max()) for now, then in pairs]
    assert found.cosines() == pytest.approx([cosine(*pair) for pair in scaled], rel=1e-9)


def test_merged_rows_come_in_the_order_in_which_they_were_measured(processes):
    ranks = processes[:2]
    for rank in ranks:
        rank.merge.register(later := Meter(1, "ran first", Request()), "output", "ran first")
        for step in (5, 6):
            row = reference.output(torch.ones(2, 2), 1, 0.0)
            for info in (Info(later.number, step, 3), Info(0, step), Info(later.number, step, 3), Info(0, step)):
                rank.keep(row, info)
    infos = meet(*ranks).infos
    assert infos[:, METER].tolist() == [1, 0] * 4
    assert infos[:, STEP].tolist() == [5] * 4 + [6] * 4


def test_copies_count_once(processes):
    whole = torch.randn(4)
    whole[0] = torch.inf
    for rank in processes:
        rank.see(whole, 0, SHARED)
    [row] = meet(*processes).rows
    assert row.tolist() == reference.geometry(whole, None, None).tolist()


def test_copies_of_parts():
    processes, whole = [Process() for _ in range(4)], torch.randn(6, dtype=torch.float64)
    for number, rank in enumerate(processes):  # two halves, each of them twice
        rank.see(whole[:3] if number < 2 else whole[3:], 0, part=number // 2 * 2)
    assert meet(*processes).norms() == pytest.approx([whole.norm().item()])


def test_a_part_of_which_nothing_is_here_changes_nothing(processes):
    for step in range(2):
        processes[0].see(torch.ones(4), step)
        for rank in processes[1:]:
            rank.see(torch.ones(0), step)
    found = meet(*processes)
    assert found.norms().tolist() == [2.0, 2.0]
    assert found.cosines() == pytest.approx([1.0])


def test_what_a_rank_has_not_seen_is_left_out_and_compared_with_nothing(processes):
    for step in range(4):
        for number, rank in enumerate(processes[:2]):
            if (step, number) != (1, 1):
                rank.see(torch.ones(2), step)
    found = meet(*processes)
    assert found.norms() == pytest.approx([2.0, 2**0.5, 2.0, 2.0])
    assert found.rows[:, FOLLOWS].tolist() == [0, 0, 0, 1]


def test_a_gap_on_one_rank_is_one_for_all(processes):
    for step in range(2):
        processes[0].see(torch.ones(2), step)
        processes[1].previous = None
        processes[1].see(torch.ones(2), step)
    found = meet(*processes)
    assert found.rows[:, FOLLOWS].tolist() == [0, 0]
    assert found.tags == [0, 0]


def test_passes_of_a_step_meet_by_kind_and_number(processes):
    first, second = processes[:2]
    first.see_output(torch.ones(2, 3), step=0, tag=0)  # an evaluation that the other one leaves out
    for rank, size in ((first, 1.0), (second, 3.0)):
        for factor in (1, 10):
            rank.see_output(torch.full((2, 3), size * factor), step=0)
    found = meet(*processes)
    assert found.tags == [0, 3, 3]
    assert found.rows[:, BATCH].tolist() == [2, 4, 4]
    assert (found.rows[:, NORMS] / found.rows[:, BATCH]).tolist() == pytest.approx([3**0.5, 2 * 3**0.5, 20 * 3**0.5])


@pytest.mark.parametrize(("knows", "dead"), [(True, 1), (False, 4)])
def test_dead_channels(knows, dead, processes):
    outputs = torch.tensor([[[1.0, 0.0, 2.0, 0.0]], [[0.0, 0.0, 2.0, 3.0]]])
    for rank, output in zip(processes[:2], outputs, strict=True):
        rank.see_output(output, 0, alive=(output > 0).any(dim=0) if knows else None)
    [row] = meet(*processes).rows
    assert row[DEAD] / row[CHANNELS] == dead / (4 if knows else 8)


def test_rows_without_elements_are_left_out(processes):
    processes[0].keep(torch.zeros(WIDTH, dtype=torch.float64), Info(0, 0))
    assert len(meet(*processes).rows) == 0


def test_active_channels_stay_with_their_row_where_others_are_left_out(processes):
    empty, flags = np.zeros((1, WIDTH)), [torch.tensor([True, False, False]), torch.tensor([False, False, True])]
    for process, alive in zip(processes[:2], flags, strict=True):
        row = reference.output(alive[None].double(), 1, 0.0).numpy()[None]
        infos = np.array([Info(0, step, 3) for step in range(2)])
        process.merge.keep(infos[:1], empty, {})
        process.merge.keep(infos, np.concatenate([empty, row]), {1: alive})
    [row] = meet(*processes).rows
    assert row[[DEAD, CHANNELS]].tolist() == [1, 3]


def test_every_column_is_merged_as_it_is_declared(processes):
    stream = np.random.default_rng(0)
    rows, later = stream.uniform(1, 2, (2, 3, WIDTH))
    rows[:, UNIT], later[:, UNIT] = [1.0, 4.0, 2.0], [0.5, 2.0, 1.0]
    for step, of_step in enumerate((rows, later)):
        for process, row in zip(processes, of_step, strict=True):
            process.keep(torch.tensor(row), Info(0, step, 3))
    joint = meet(*processes).rows[1]
    for column in Column:
        own = later[:, column]
        if column is DOT:  # in the units of both rows
            own = own * later[:, UNIT] / 2.0 * rows[:, UNIT] / 4.0
        elif column is not UNIT:
            own = own * (later[:, UNIT] / 2.0) ** column.power
        reduce = {Merge.SUM: np.sum, Merge.LARGEST: np.max, Merge.SMALLEST: np.min}[column.merge]
        assert joint[column] == pytest.approx(reduce(own)), column.name


def test_nothing_is_merged_to_nothing(processes):
    assert len(meet(*processes).rows) == 0


def test_comparisons_go_on_after_a_checkpoint(processes):
    wholes = torch.randn(4, 6, dtype=torch.float64)
    for step, whole in enumerate(wholes):
        if step == 2:
            for process in processes:
                state = process.merge.state_dict()
                process.merge = RankMerge(process.receive)
                process.meter.key = ()
                process.merge.register(process.meter, "gradient", "layer")
                process.merge.load_state_dict(state)
        for number, process in enumerate(processes):
            process.see(whole[2 * number : 2 * number + 2], step)
        found = meet(*processes)
    assert found.cosines() == pytest.approx([cosine(wholes[i], wholes[i - 1]) for i in range(1, 4)])


def test_equal_requests_for_one_tensor_have_names_of_their_own():
    merged, meters = RankMerge(lambda *_: None), [Meter(number, "layer", Request()) for number in range(3)]
    for meter, what in zip(meters, ["norm", "norm", "update"], strict=True):
        merged.register(meter, what, "layer")
    merged.register(meters[0], "norm", "layer")
    assert len({meter.key for meter in meters}) == 3


def test_a_meter_that_others_do_not_have(processes):
    processes[2].merge = RankMerge(processes[2].receive)  # it watches nothing
    processes[0].see(torch.ones(4), 0)
    assert meet(*processes).norms().tolist() == [2.0]
    assert len(processes[2].rows) == 0
