"""Programs of reductions, replayed in one process; those of real processes are in test_ranks.py."""

import numpy as np
import pytest

from monitorch.engine.reductions import (
    How,
    Reduction,
    Seat,
    agree_on,
    digest,
    gather,
    replay,
    run,
    side_by_side,
    union,
)

PROCESSES = 3


def seats():
    return [Seat(rank, PROCESSES) for rank in range(PROCESSES)]


def counts_to(number, how=How.SUM):
    """Reduces that many times."""
    total = np.ones(1)
    for _ in range(number):
        (total,) = yield [Reduction(total, how)]
    return float(total[0])


def test_every_process_gets_the_same_result():
    assert replay([counts_to(2) for _ in range(PROCESSES)]) == [9.0] * PROCESSES
    assert replay([counts_to(2, How.LARGEST) for _ in range(PROCESSES)]) == [1.0] * PROCESSES


def test_programs_without_reductions_end_at_once():
    assert replay([counts_to(0) for _ in range(PROCESSES)]) == [1.0] * PROCESSES
    with pytest.raises(RuntimeError, match="same time"):
        replay([counts_to(0), counts_to(1)])


def test_programs_of_different_length_run_side_by_side():
    programs = [side_by_side(counts_to(1), counts_to(3), counts_to(0)) for _ in range(2)]
    assert replay(programs) == [[2.0, 8.0, 1.0]] * 2


def test_what_is_reduced_in_the_same_way_travels_together():
    sent = []

    def reduce(numbers, how):
        sent.append((len(numbers), numbers.dtype.name, how))
        return numbers * 2

    def program():
        found = yield [
            Reduction(np.ones((2, 3)), How.SUM),
            Reduction(np.ones(4), How.SUM),
            Reduction(np.ones(5), How.LARGEST),
            Reduction(np.ones(6, np.int64), How.SUM),
            Reduction(np.zeros(0, np.uint8), How.SUM),
        ]
        return [array.shape for array in found], [float(array.sum()) for array in found]

    assert run(program(), reduce) == ([(2, 3), (4,), (5,), (6,), (0,)], [12.0, 8.0, 10.0, 12.0, 0.0])
    assert sent == [(10, "float64", How.SUM), (5, "float64", How.LARGEST), (6, "int64", How.SUM)]


@pytest.mark.parametrize("own", [["a", None, {"b": [1.5]}], [None] * 3, [b"", 0, ()]])
def test_what_some_processes_have_is_gathered(own):
    expected = {rank: one for rank, one in enumerate(own) if one is not None}
    assert replay([gather(one, seat) for one, seat in zip(own, seats(), strict=True)]) == [expected] * PROCESSES


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([["a", "b"], ["b", "a"], ["a", "b"]], ["a", "b"]),
        ([["a"], ["c", "a"], ["d", "c"]], ["a", "c", "d"]),
        ([[], [], ["x"]], ["x"]),
        ([[], [], []], []),
    ],
)
def test_everything_that_any_process_has(own, expected):
    assert replay([union(one, seat) for one, seat in zip(own, seats(), strict=True)]) == [expected] * PROCESSES


def test_digests_tell_whether_all_have_the_same():
    programs = [agree_on([digest("a", b"b"), digest("rank", rank)], rank, -rank) for rank in range(PROCESSES)]
    assert replay(programs) == [([True, False], [2, 0])] * PROCESSES
