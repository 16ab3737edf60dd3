import math
import statistics

import numpy as np
import pytest

from monitorch.diagnosis.ranking import CALM_FACTOR, Severity, severities, worst_first


def judge(*rows, nonfinite=None, limits=None):
    values = np.array(rows, np.float32)
    return severities(values, ~np.isfinite(values) if nonfinite is None else np.array(nonfinite), limits)


def plain_judge(row, nonfinite, limits, largest):
    """The rule again, number by number."""
    finite = [float(value) for value in row if math.isfinite(value)]
    measured = sum(math.isfinite(value) or count > 0 for value, count in zip(row, nonfinite, strict=True))
    counts = sum(nonfinite), sum(count > 0 for count in nonfinite), measured
    if not finite:
        return *counts, 0.0, math.nan, math.nan
    *history, newest = finite
    median = statistics.median(map(abs, history)) if history else math.nan
    floor = 0.01 * (limits[1] - limits[0]) if limits else 0.0
    if min(finite) < 0 < max(finite):
        floor = max([floor, *map(abs, history)])
    jump = 0.0
    if len(history) >= 4:
        above, below = abs(newest) + floor, median + floor
        if above == 0 or below == 0:
            jump = 0.0 if above == below else math.inf if below == 0 else -math.inf
        else:
            jump = math.log10(above / below)
        if abs(newest) < 1e-6 * largest and median < 1e-6 * largest:
            jump = 0.0
        if limits is None and not any(finite):
            jump = -math.inf
    return *counts, jump if abs(jump) >= math.log10(CALM_FACTOR) else 0.0, median, newest


@pytest.mark.parametrize("limits", [None, (-1.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_rule_holds_for_arbitrary_numbers(limits, shift):
    random = np.random.default_rng(3)
    values = (random.normal(shift, 1.0, (200, 12)) * 10.0 ** random.integers(-4, 4, (200, 12))).astype(np.float32)
    values[random.random(values.shape) < 0.2] = np.nan
    values[random.random(values.shape) < 0.1] = np.inf
    values[random.random(values.shape) < 0.2] = 0
    broken = np.isinf(values) | (np.isnan(values) & (random.random(values.shape) < 0.5))
    counts = broken * random.integers(1, 9, values.shape)
    found = severities(values, counts, limits)
    largest = max(abs(values[np.isfinite(values)]))
    expected = [plain_judge(row, bad, limits, largest) for row, bad in zip(values, counts, strict=True)]
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-6)
    assert any(severity.jump for severity in found)


@pytest.mark.parametrize("ticks", [0, 1, 4])
def test_a_layer_with_few_numbers_is_calm(ticks):
    (severity,) = judge([10.0**tick for tick in range(ticks)])
    assert (severity.jump, severity.reason) == (0.0, "")
    assert severity.ticks == ticks


def test_layers_that_are_not_finite_come_first_then_jumps_then_large_numbers():
    steady = [1.0] * 9
    rows = {
        "small": [0.1] * 9,
        "large": [7.0] * 9,
        "up": [*steady[1:], 90.0],
        "down": [*steady[1:], 1e-3],
        "once": [1, 1, np.nan, *steady[3:]],
        "often": [*steady[:7], np.inf, np.nan],
    }
    order = worst_first(judge(*rows.values()))
    assert [list(rows)[place] for place in order] == ["often", "once", "down", "up", "large", "small"]


def test_a_layer_that_was_0_all_the_time_is_far_from_calm_unless_all_are():
    dead, alive = [0.0] * 9, [1.0] * 9
    severity, other = judge(dead, alive)
    assert (severity.reason, other.reason) == ("0 all the time", "")
    assert worst_first(judge(alive, dead)) == [1, 0]
    assert [found.reason for found in judge(dead, dead)] == ["", ""]
    assert [found.reason for found in judge(dead, alive, limits=(0.0, 1.0))] == ["", ""]


def test_noise_beside_numbers_a_million_times_as_large_is_calm():
    noise, alive = [0.0] * 8 + [2e-9], [1.0] * 9
    assert [found.reason for found in judge(noise, alive)] == ["", ""]
    assert judge(noise)[0].reason == "rose from 0"


def test_equally_bad_layers_keep_their_order():
    assert worst_first(judge(*[[1.0] * 9] * 5)) == [0, 1, 2, 3, 4]


def test_what_was_not_measured_is_not_called_infinite():
    (severity,) = judge([1.0, np.nan, 1.0], nonfinite=[[0, 0, 0]])
    assert (severity.nonfinite, severity.ticks) == (0, 2)


@pytest.mark.parametrize(
    ("row", "limits", "jumps"),
    [
        ([0.01, -0.02, 0.01, -0.01, 0.02, -1e-5], None, False),  # noise around zero
        ([0.01, -0.02, 0.01, -0.01, 0.02, 0.9], None, True),
        ([0.001, 0.002, 0.001, 0.001, 0.001, 0.01], (0.0, 1.0), False),  # a hundredth of what there can be
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.9], (0.0, 1.0), True),
        ([1.0, 1.1, 0.9, 1.0, 1.0, 2.9], None, False),
        ([1.0, 1.1, 0.9, 1.0, 1.0, 3.1], None, True),
    ],
)
def test_what_counts_as_a_jump(row, limits, jumps):
    (severity,) = judge(row, limits=limits)
    assert bool(severity.jump) is jumps


@pytest.mark.parametrize(
    ("severity", "reason"),
    [
        (Severity(1200, 3, 60, 0.0, 1.0, 1.0), "1,200 not finite in 3 of 60 ticks"),
        (Severity(0, 0, 60, 0.0, 1.0, 1.0), ""),
        (Severity(0, 0, 60, 0.6, 1.0, 4.0), "4.0x its median"),
        (Severity(0, 0, 60, 3.1, 1.0, -1234.0), "1,234x its median"),
        (Severity(0, 0, 60, 9.0, 1.0, 1e9), "1e+09x its median"),
        (Severity(0, 0, 60, -2.0, 1.0, 0.01), "1/100 of its median"),
        (Severity(0, 0, 60, math.inf, 0.0, 2.0), "rose from 0"),
        (Severity(0, 0, 60, -math.inf, 2.0, 0.0), "fell to 0"),
    ],
)
def test_reason(severity, reason):
    assert severity.reason == reason
