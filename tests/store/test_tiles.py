import numpy as np
import pytest

from monitorch.store.tiles import Columns, absent, is_absent, join, merge, summarise


def expected(values, width):
    """By loops in float64: mean, lowest, highest, finite, not finite."""
    groups = [values[start : start + width] for start in range(0, len(values), width)]
    for group in groups:
        measured = group[~is_absent(group)]
        finite = measured[np.isfinite(measured)].astype(np.float64)
        numbers = (finite.mean(), finite.min(), finite.max()) if len(finite) else (np.nan,) * 3
        yield *numbers, len(finite), len(measured) - len(finite)


def mixed(count):
    stream = np.random.default_rng(count)
    values = (stream.normal(size=count) * 1e3).astype(np.float32)
    kind = stream.integers(0, 12, count)
    values[kind == 0], values[kind == 1], values[kind == 2] = np.nan, np.inf, -np.inf
    return np.where(kind == 3, absent([count]), values)


@pytest.mark.parametrize("values", [mixed(400), mixed(33), np.float32(range(100))], ids=["mixed", "short", "finite"])
@pytest.mark.parametrize("width", [1, 3, 16, 256])
@pytest.mark.parametrize("group", [1, 2, 16])
def test_columns_are_those_of_a_loop(values, width, group):
    columns = merge(summarise(values, width), group)
    wanted = np.array(list(expected(values, width * group))).T
    np.testing.assert_allclose(columns.numbers[0], wanted[0], rtol=2e-7, atol=2e-7 * 1e4)  # the largest is below 1e4
    np.testing.assert_array_equal(columns.numbers[1:], wanted[1:3])
    np.testing.assert_array_equal(columns.counts, wanted[3:])


def test_memory_order_does_not_matter():
    by_tick = np.random.default_rng(0).normal(size=(64, 5, 7)).astype(np.float32)
    slow = np.moveaxis(by_tick, 0, -1)
    for left, right in zip(summarise(slow, 16), summarise(np.ascontiguousarray(slow), 16), strict=True):
        np.testing.assert_array_equal(left, right)


def test_mean_of_the_largest_numbers_does_not_overflow():
    largest = np.full(32, np.finfo(np.float32).max)
    assert merge(summarise(largest, 16), 2).numbers.tolist() == [[largest[0]]] * 3


def test_group_without_finite_numbers_is_nan_and_counted():
    columns = summarise(np.float32([np.nan, np.inf, -np.inf, 1]), 2)
    np.testing.assert_array_equal(columns.numbers[:, 0], np.nan)
    assert columns.counts.tolist() == [[0, 1], [2, 1]]


def test_single_columns_are_the_numbers_themselves():
    values = mixed(300).reshape(3, 100)
    columns = Columns.single(values)
    for numbers in columns.numbers:
        np.testing.assert_array_equal(numbers.view(np.uint32), values.view(np.uint32))
    np.testing.assert_array_equal(columns.counts[0], np.isfinite(values))
    np.testing.assert_array_equal(columns.counts[1], ~np.isfinite(values) & ~is_absent(values))


def test_columns_survive_as_bytes():
    columns = summarise(mixed(320).reshape(2, 160), 16)
    for before, after in zip(columns, Columns.from_bytes(columns.to_bytes(), 10), strict=True):
        np.testing.assert_array_equal(before, after)


def test_totals_are_sums_and_nothing_where_nothing_was_measured():
    stream = np.random.default_rng(3)
    values = stream.integers(0, 5000, 1600).astype(np.float32)
    values[stream.random(1600) < 0.2] = absent([1])[0]
    values[:32], values[32:48] = absent([1])[0], np.nan
    wanted = [np.nansum(values[start : start + 16]) for start in range(0, 1600, 16)]
    assert summarise(values, 16).totals().tolist() == wanted
    assert merge(summarise(values, 16), 100).totals().tolist() == [np.nansum(values)]


@pytest.mark.parametrize("broken", [False, True], ids=["finite", "not finite"])
def test_columns_of_more_ticks_than_sixteen_bits_can_count_are_merged(broken):
    ticks = 70_000
    values = np.full(ticks, np.nan if broken else 3.0, np.float32)
    columns = merge(summarise(values, 256), -(-ticks // 256))
    assert columns.counts.tolist() == ([[0], [ticks]] if broken else [[ticks], [0]])
    np.testing.assert_array_equal(columns.numbers, [[np.nan if broken else 3.0]] * 3)


def test_joined_columns_stand_one_after_the_other():
    values = mixed(96).reshape(1, 96)
    parts = join([summarise(values[:, :32], 16), summarise(values[:, 32:], 16)])
    for left, right in zip(parts, summarise(values, 16), strict=True):
        np.testing.assert_array_equal(left, right)


def test_measured_nan_of_any_bits_is_not_absent():
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF], np.uint32)
    assert not is_absent(bits.view(np.float32)).any()
    assert np.isnan(absent([3])).all()
