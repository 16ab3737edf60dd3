import numpy as np
import pytest

from monitorch.cli.sparkline import ASCII, sparkline

NAN, INF = np.nan, np.inf


def draw(numbers, width=80, **options):
    values = np.array(numbers, np.float32)
    return sparkline(values, ~np.isfinite(values), width, **options)


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        ([], ""),
        ([5], "▁"),
        ([5, 5, 5], "▁▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([-7, 0], "▁█"),
        ([1, NAN, INF, -INF, 8], "▁!!!█"),
        ([NAN, NAN], "!!"),
        ([1, 10, 100, 1000, 10_000, 100_000, 1e6, 1e7], "▁▂▃▄▅▆▇█"),  # logarithms
        ([-3e38, 0, 3e38], "▁▅█"),
    ],
)
def test_line(numbers, line):
    assert draw(numbers) == line


def test_what_was_not_measured_is_a_gap():
    assert sparkline(np.array([1, NAN, 2]), np.array([0, 0, 0]), width=9) == "▁ █"


@pytest.mark.parametrize("spike", [50.0, -50.0, NAN])
def test_no_spike_is_lost_where_numbers_share_a_character(spike):
    numbers = [1.0] * 100
    numbers[41] = spike
    line = draw(numbers, width=10)
    assert len(line) == 10
    assert line[4] not in line[:4] + line[5:]


def test_terminals_without_blocks_get_plain_characters():
    assert draw([0, 7], blocks=ASCII) == "_#"
