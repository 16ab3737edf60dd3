"""The file format of recordings: one strict JSON object per line, in sessions.

A session begins with a header line and every further line names its session, so a file may be continued by a later
run and even be shared by two runs at a time. Lines hold numbers and names only: playing one cannot run code.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from .. import __version__
from ..errors import RecordingError
from .abstract_visualizer import Ranges, TagAttributes, TagType, Values

FORMAT = "monitorch-recording"
VERSION = 2
PLOT_METHODS = ("plot_numerical_values", "plot_probabilities", "plot_relations")
# optional methods of a visualizer, and the types of their arguments
OPTIONAL_METHODS: dict[str, tuple[type, ...]] = {
    "introduce_layers": (list,),
    "begin_tick": (int, int, str),
    "count_nonfinite": (int, str, dict),
}

FilePath: TypeAlias = str | PathLike[str]

_HEADER_START = f'{{"format": "{FORMAT}"'.encode()
_PICKLE_START = b"\x80"


class Session(NamedTuple):
    """The header of a session."""

    id: str
    version: int
    monitorch: str
    time: float


class RecordedCall(NamedTuple):
    """One recorded call of a visualizer's method."""

    method: str
    arguments: tuple[Any, ...]


class Damage(NamedTuple):
    """A line that cannot be read."""

    line: int
    is_cut: bool


def header_line(session: str) -> bytes:
    """The line that opens a session."""
    started = {"monitorch": __version__, "time": time.time()}
    return _line({"format": FORMAT, "version": VERSION, "session": session} | started)


def tag_line(session: str, main_tag: str, attributes: TagAttributes) -> bytes:
    """The line for a call of ``register_tags``."""
    ylim = attributes.ylim
    encoded = {
        "logy": bool(attributes.logy),
        "big_plot": bool(attributes.big_plot),
        "annotate": bool(attributes.annotate),
        "type": attributes.type.name,
        "ylim": None if ylim is None else [_number(end) for end in ylim],
        "apart": bool(attributes.apart),
    }
    return _line({"session": session, "method": "register_tags", "main_tag": main_tag, "tag_attr": encoded})


def plot_line(
    session: str, method: str, epoch: int, main_tag: str, values: Values, ranges: Ranges | None = None
) -> bytes:
    """The line for a call of one of the plot methods."""
    content: dict[str, Any] = {"session": session, "method": method, "epoch": int(epoch), "main_tag": main_tag}
    content["values"] = {
        layer: {name: _number(value) for name, value in lines.items()} for layer, lines in values.items()
    }
    if method == "plot_numerical_values":
        content["ranges"] = (
            None
            if ranges is None
            else {layer: [_band(names, edges) for names, edges in bands.items()] for layer, bands in ranges.items()}
        )
    return _line(content)


def call_line(session: str, method: str, *arguments: Any) -> bytes:
    """The line for a call of one of the optional methods."""
    return _line({"session": session, "method": method, "arguments": arguments})


def check_format(path: Path) -> None:
    """Refuse a file that is not a recording."""
    start = b"\n"
    with path.open("rb") as file:
        # headers that were cut off when a process was killed may come first
        while start.endswith(b"\n") and _HEADER_START.startswith(start[:-1]):
            start = file.readline(len(_HEADER_START))
    if _HEADER_START.startswith(start):
        return
    if start.startswith(_PICKLE_START):
        raise RecordingError(
            f"{path} is a pickle file, as old recordings were; loading a pickle can run any code, "
            "so it is not opened: record the run again"
        )
    raise RecordingError(f"{path} is not a recording: it does not begin with the header of a {FORMAT}")


def read_sessions(path: Path) -> list[Session]:
    """All sessions of a file, oldest first."""
    with path.open("rb") as file:
        sessions = [_session(_parsed(line)) for line in file if line.startswith(_HEADER_START)]
    return [session for session in sessions if session]


def read_calls(path: Path, session: str) -> Iterator[RecordedCall | Damage]:
    """The calls of a session, and the unreadable lines of all sessions."""
    with path.open("rb") as file:
        for count, line in enumerate(file, start=1):
            content = _parsed(line)
            if content is None:
                yield Damage(count, is_cut=not line.endswith(b"\n"))
            elif content["session"] == session and "format" not in content:
                yield _call(content) or Damage(count, is_cut=False)


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def _number(value: float) -> float | str:
    """JSON has no NaN and infinity, so they become strings."""
    value = float(value)
    return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


def _band(names: tuple[str, str], edges: tuple[float, float]) -> list[str | float]:
    (low_name, high_name), (low, high) = names, edges
    return [low_name, high_name, _number(low), _number(high)]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The content of a line; None if it is damaged."""
    try:
        content = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and "session" in content else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _session(header: Mapping[str, Any] | None) -> Session | None:
    try:
        header = header or {}
        return Session(header["session"], int(header["version"]), header["monitorch"], header["time"])
    except (KeyError, TypeError, ValueError):
        return None


def _call(content: Mapping[str, Any]) -> RecordedCall | None:
    """The call in a line; None if it is not a visualizer's method with valid arguments."""
    try:
        return _decoded(content)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _decoded(content: Mapping[str, Any]) -> RecordedCall:
    method = content["method"]
    if method in OPTIONAL_METHODS:
        arguments = tuple(content["arguments"])
        if tuple(map(type, arguments)) != OPTIONAL_METHODS[method]:
            raise TypeError(f"{method} has the wrong arguments")
        return RecordedCall(method, arguments)
    main_tag = content["main_tag"]
    if method == "register_tags":
        return RecordedCall(method, (main_tag, _attributes(content["tag_attr"])))
    if method not in PLOT_METHODS:
        raise ValueError(f"{method!r} is not a method of a visualizer")
    values = {
        layer: {name: float(value) for name, value in lines.items()} for layer, lines in content["values"].items()
    }
    ranges = (_ranges(content["ranges"]),) if method == "plot_numerical_values" else ()
    return RecordedCall(method, (int(content["epoch"]), main_tag, values, *ranges))


def _attributes(content: Mapping[str, Any]) -> TagAttributes:
    ylim = content["ylim"]
    flags = {name: bool(content[name]) for name in ("logy", "big_plot", "annotate")}
    flags["apart"] = bool(content.get("apart", False))  # version 1 did not record it
    return TagAttributes(**flags, type=TagType[content["type"]], ylim=ylim and (float(ylim[0]), float(ylim[1])))


def _ranges(content: Mapping[str, Any] | None) -> Ranges | None:
    if content is None:
        return None
    return {
        layer: {(low_name, high_name): (float(low), float(high)) for low_name, high_name, low, high in bands}
        for layer, bands in content.items()
    }
