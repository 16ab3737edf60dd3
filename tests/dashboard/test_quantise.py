import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monitorch.dashboard.quantise import ABSENT, STEP, decode, encode, plan, squeeze
from monitorch.store import Writer, open_run

ORDINARY = st.floats(2.0**-30, 2.0**30, width=32)


@given(arrays(np.float32, st.integers(1, 50), elements=ORDINARY))
def test_positive_numbers_are_kept_to_a_part_of_a_percent(values):
    again = decode(encode(values, plan(values)), plan(values))
    worst = max(STEP, np.log(2.0**60) / 65000) / 2
    np.testing.assert_allclose(again, values.astype(np.float64), rtol=1.01 * worst)


def test_numbers_of_both_signs_keep_their_sign_and_size():
    values = np.concatenate([-np.geomspace(1e-4, 1, 500), np.geomspace(1e-4, 1, 500)]).astype(np.float32)
    again = decode(encode(values, plan(values)), plan(values))
    np.testing.assert_allclose(again, values, rtol=2e-3, atol=1e-7)
    assert (np.sign(again) == np.sign(values)).all()


def test_what_is_no_ordinary_number_is_exact():
    values = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
    again = decode(encode(values, plan(values)), plan(values))
    np.testing.assert_array_equal(again[:5], [np.nan, np.inf, -np.inf, 0, 0])


def test_what_was_not_measured_is_not_nan(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer.put("L", 0, [[1.0]], layers=["a"], statistics=["s"])
        writer.put("L", 1, [[np.nan, 2.0]], layers=["a", "b"], statistics=["s"])
    with open_run(tmp_path / "run") as run:
        values = run.window("L", "s").mean
    codes = encode(values, plan(values))
    assert (codes == ABSENT).tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize("values", [[], [np.nan], [0.0], [5.0], [-5.0, -5.0], [1e-45, 3.4e38]])
def test_arrays_with_little_in_them(values):
    values = np.float32(values)
    again = decode(encode(values, plan(values)), plan(values))
    np.testing.assert_allclose(again, values.astype(np.float64), rtol=2e-3)


def test_squeezed_codes_of_a_smooth_curve_are_small():
    values = np.exp(np.linspace(0, 3, 5000, dtype=np.float32))[None]
    codes = encode(values, plan(values))
    assert len(gzip.compress(squeeze(codes))) < codes.nbytes / 20
