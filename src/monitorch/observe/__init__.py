"""Record any attribute of any module over time: monitors take samples, reducers combine them."""

from .average import CAReducer, EMAReducer
from .difference import DifferenceMonitor
from .event import EventReducer
from .fold import FoldReducer
from .hook import ContextualHook, Hook, StateHook
from .module import Module
from .monitor import Monitor, MonitorConstructor
from .passthrough import PassthroughReducer
from .pool import MonitorPool, Observable
from .record import RecordTensor
from .reducer import RecordReducer, Reducer
from .signal import InputMonitor, OutputMonitor
from .state import MultiStateMonitor, StateMonitor
from .trace import (
    ConditionalCumulativeTraceReducer,
    ConditionalNearestTraceReducer,
    CumulativeTraceReducer,
    NearestTraceReducer,
    ScaledCumulativeTraceReducer,
    ScaledNearestTraceReducer,
)

__all__ = [
    "CAReducer",
    "ConditionalCumulativeTraceReducer",
    "ConditionalNearestTraceReducer",
    "ContextualHook",
    "CumulativeTraceReducer",
    "DifferenceMonitor",
    "EMAReducer",
    "EventReducer",
    "FoldReducer",
    "Hook",
    "InputMonitor",
    "Module",
    "Monitor",
    "MonitorConstructor",
    "MonitorPool",
    "MultiStateMonitor",
    "NearestTraceReducer",
    "Observable",
    "OutputMonitor",
    "PassthroughReducer",
    "RecordReducer",
    "RecordTensor",
    "Reducer",
    "ScaledCumulativeTraceReducer",
    "ScaledNearestTraceReducer",
    "StateHook",
    "StateMonitor",
]
