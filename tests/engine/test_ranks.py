"""Rows of parts, put together, are the rows of the whole."""

import numpy as np
import pytest
import torch

from monitorch.engine.buffers import OWN, SHARED, Note
from monitorch.engine.columns import BATCH, CHANNELS, DEAD, DOT, FOLLOWS, LARGEST, NORMS, SIZE, SQUARES, UNIT
from monitorch.engine.kernels import reference
from monitorch.engine.ranks import RankMerge


class Place:
    """A site that keeps what it is handed."""

    key = ()

    def __init__(self):
        self.rows, self.tags = np.zeros((0, 12)), []

    def deliver(self, rows, tags):
        self.rows, self.tags = np.concatenate([self.rows, rows]), [*self.tags, *tags]

    def norms(self):
        return np.sqrt(self.rows[:, SQUARES]) * self.rows[:, UNIT]

    def cosines(self):
        sizes = np.sqrt(self.rows[:, SQUARES])
        return [dot / (sizes[i] * sizes[i - 1]) for i, dot in enumerate(self.rows[:, DOT]) if self.rows[i, FOLLOWS]]


class Rank:
    """One process with one site."""

    def __init__(self):
        self.joint, self.site, self.previous = RankMerge(), Place(), None
        self.joint.enrol(self.site, "gradient", "layer")

    def see(self, tensor, step, part=OWN, tag=0):
        row = reference.geometry(tensor, self.previous, None)
        self.previous = tensor
        self.joint.keep([Note(self.site, tag, step, part)], row[None])

    def see_output(self, tensor, step, tag=3, alive=None):
        self.joint.keep([Note(self.site, tag, step, alive=alive)], reference.output(tensor, 1, 0.0)[None])


def meet(*ranks):
    loads = {number: rank.joint.payload() for number, rank in enumerate(ranks)}
    for rank in ranks:
        rank.joint.merge_ranks(loads)
    return ranks[0].site


def cosine(first, second):
    return float((first / first.norm()).flatten() @ (second / second.norm()).flatten())


@pytest.fixture
def ranks():
    return [Rank() for _ in range(3)]


@pytest.mark.parametrize("meets_after", [1, 2, 4])
@pytest.mark.parametrize("scales", [(1, 1, 1, 1), (1e200, 1e-3, 1e-200, 1e180)], ids=["usual", "extreme"])
def test_parts_of_a_tensor_are_the_tensor(scales, meets_after, ranks):
    wholes = [torch.randn(5, 4, dtype=torch.float64) * scale for scale in scales]
    for step, whole in enumerate(wholes):
        for rank, part in zip(ranks, (whole[:1] * 1e-3, whole[1:3], whole[3:]), strict=True):
            rank.see(part, step)
        if (step + 1) % meets_after == 0:
            site = meet(*ranks)
    wholes = [torch.cat([whole[:1] * 1e-3, whole[1:]]) for whole in wholes]
    expected = [(whole / whole.abs().max()).norm().item() * whole.abs().max().item() for whole in wholes]
    assert site.norms() == pytest.approx(expected, rel=1e-12)
    assert site.rows[:, LARGEST] == pytest.approx([whole.abs().max().item() for whole in wholes])
    assert site.rows[:, SIZE].tolist() == [20.0] * 4
    pairs = zip(wholes[1:], wholes, strict=False)
    scaled = [(now / now.abs().max(), then / then.abs().max()) for now, then in pairs]
    assert site.cosines() == pytest.approx([cosine(*pair) for pair in scaled], rel=1e-9)


def test_copies_count_once(ranks):
    whole = torch.randn(4)
    whole[0] = torch.inf
    for rank in ranks:
        rank.see(whole, 0, SHARED)
    [row] = meet(*ranks).rows
    assert row.tolist() == reference.geometry(whole, None, None).tolist()


def test_copies_of_parts():
    ranks, whole = [Rank() for _ in range(4)], torch.randn(6, dtype=torch.float64)
    for number, rank in enumerate(ranks):  # two halves, each of them twice
        rank.see(whole[:3] if number < 2 else whole[3:], 0, part=number // 2 * 2)
    assert meet(*ranks).norms() == pytest.approx([whole.norm().item()])


def test_a_part_of_which_nothing_is_here_changes_nothing(ranks):
    for step in range(2):
        ranks[0].see(torch.ones(4), step)
        for rank in ranks[1:]:
            rank.see(torch.ones(0), step)
    site = meet(*ranks)
    assert site.norms().tolist() == [2.0, 2.0]
    assert site.cosines() == pytest.approx([1.0])


def test_what_a_rank_has_not_seen_is_left_out_and_compared_with_nothing(ranks):
    for step in range(4):
        for number, rank in enumerate(ranks[:2]):
            if (step, number) != (1, 1):
                rank.see(torch.ones(2), step)
    site = meet(*ranks)
    assert site.norms() == pytest.approx([2.0, 2**0.5, 2.0, 2.0])
    assert site.rows[:, FOLLOWS].tolist() == [0, 0, 0, 1]


def test_a_gap_on_one_rank_is_one_for_all(ranks):
    for step in range(2):
        ranks[0].see(torch.ones(2), step)
        ranks[1].previous = None
        ranks[1].see(torch.ones(2), step)
    site = meet(*ranks)
    assert site.rows[:, FOLLOWS].tolist() == [0, 0]
    assert site.tags == [0, 0]


def test_passes_of_a_step_meet_by_kind_and_number(ranks):
    first, second = ranks[:2]
    first.see_output(torch.ones(2, 3), step=0, tag=0)  # an evaluation that the other one leaves out
    for rank, size in ((first, 1.0), (second, 3.0)):
        for factor in (1, 10):
            rank.see_output(torch.full((2, 3), size * factor), step=0)
    site = meet(*ranks)
    assert site.tags == [0, 3, 3]
    assert site.rows[:, BATCH].tolist() == [2, 4, 4]
    assert (site.rows[:, NORMS] / site.rows[:, BATCH]).tolist() == pytest.approx([3**0.5, 2 * 3**0.5, 20 * 3**0.5])


@pytest.mark.parametrize(("knows", "dead"), [(True, 1), (False, 4)])
def test_dead_channels(knows, dead, ranks):
    outputs = torch.tensor([[[1.0, 0.0, 2.0, 0.0]], [[0.0, 0.0, 2.0, 3.0]]])
    for rank, output in zip(ranks[:2], outputs, strict=True):
        rank.see_output(output, 0, alive=(output > 0).any(dim=0) if knows else None)
    [row] = meet(*ranks).rows
    assert row[DEAD] / row[CHANNELS] == dead / (4 if knows else 8)


def test_rows_that_were_never_written_are_left_out(ranks):
    ranks[0].joint.keep([Note(ranks[0].site, 0, 0)], torch.zeros(1, 12, dtype=torch.float64))
    assert len(meet(*ranks).rows) == 0


def test_equal_wishes_at_one_place_have_names_of_their_own():
    joint, places = RankMerge(), [Place() for _ in range(3)]
    for place, what in zip(places, ["norm", "norm", "update"], strict=True):
        joint.enrol(place, what, "layer")
    joint.enrol(places[0], "norm", "layer")
    assert len({place.key for place in places}) == 3


def test_a_site_that_others_do_not_have(ranks):
    ranks[2].joint = RankMerge()  # it watches nothing
    ranks[0].see(torch.ones(4), 0)
    assert meet(*ranks).norms().tolist() == [2.0]
