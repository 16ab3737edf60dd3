"""Constructors take what they promise, in that order; what a constructor passes on is shown, too."""

import inspect

import pytest

from monitorch import observe

RECORD = "duration=0.0, inclusive=False, inplace=False"
MONITOR = "train_update=True, eval_update=True, prepend=False, filter_=None, map_=None"
TRACE = f"step_time, time_constant, amplitude, {{}}, *, {RECORD}, differentiable=False"
SIGNATURES = {
    "RecordReducer": "step_time, duration, inclusive=False, inplace=False, *, differentiable=False",
    "FoldReducer": "step_time, duration, inclusive=False, inplace=False, fill=0, *, differentiable=False",
    "PassthroughReducer": f"step_time, {RECORD}, *, differentiable=False",
    "CAReducer": f"step_time, {RECORD}, *, differentiable=False",
    "EMAReducer": f"step_time, alpha, {RECORD}, *, differentiable=False",
    "EventReducer": f"step_time, criterion, initial='inf', {RECORD}, *, differentiable=False",
    "NearestTraceReducer": TRACE.format("target, tolerance=None"),
    "CumulativeTraceReducer": TRACE.format("target, tolerance=None"),
    "ScaledNearestTraceReducer": TRACE.format("scale, criterion"),
    "ScaledCumulativeTraceReducer": TRACE.format("scale, criterion"),
    "ConditionalNearestTraceReducer": TRACE.format("scale"),
    "ConditionalCumulativeTraceReducer": TRACE.format("scale"),
    "Monitor": "reducer, module=None, prehook=None, posthook=None, prehook_kwargs=None, posthook_kwargs=None, "
    "train_update=True, eval_update=True",
    "InputMonitor": f"reducer, module=None, {MONITOR}",
    "OutputMonitor": f"reducer, module=None, {MONITOR}",
    "StateMonitor": "reducer, attr, module=None, as_prehook=False, " + MONITOR,
    "MultiStateMonitor": "reducer, attr, subattrs, module=None, as_prehook=False, " + MONITOR,
    "DifferenceMonitor": f"reducer, attr, module=None, {MONITOR}, op_=None",
    "Observable": "basis, realign, realign_args, realign_kwargs",
    "MonitorPool": "",
}


def bare(signature):
    """The signature as text, without annotations."""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.items(), ids=SIGNATURES.keys())
def test_constructor(name, expected):
    assert bare(inspect.signature(getattr(observe, name))) == f"({expected})"


def test_partialconstructor_takes_all_but_attr_and_module():
    shown = bare(inspect.signature(observe.DifferenceMonitor.partialconstructor))
    assert shown == f"(reducer, {MONITOR}, op_=None)"
