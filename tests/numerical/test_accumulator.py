import pytest

from monitorch.numerical import RunningMeanVar, RunningValue
from monitorch.numerical.series import SampleList, accumulators_in, new_accumulator


@pytest.mark.parametrize(("inplace", "kind"), [(True, RunningMeanVar), (False, SampleList)])
def test_inplace_decides_the_kind(inplace, kind):
    accumulator = new_accumulator(inplace)
    assert type(accumulator) is kind
    assert isinstance(accumulator, (RunningMeanVar, list))
    assert len(accumulator) == 0


@pytest.mark.parametrize("value", [[1.0], RunningMeanVar(1, 1.0), [], RunningMeanVar()])
def test_accumulators_in_each_shape_of_value(value):
    assert list(accumulators_in(value)) == [value]
    assert list(accumulators_in((value, [2.0]))) == [value, [2.0]]
    assert list(accumulators_in({"weight": value, "bias": [2.0]})) == [value, [2.0]]


def test_running_value_is_a_plain_pair():
    assert RunningValue() == RunningValue(count=0, value=None)
    assert RunningValue(2, "x").value == "x"
