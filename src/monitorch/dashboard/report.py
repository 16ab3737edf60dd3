"""A run as one HTML file that needs nothing else, not even a network."""

import base64
import gzip
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..statistic import NONFINITE
from ..store import WHOLE_RUN, Run
from . import api, bundle, quantise
from .windows import WindowBlock, WindowRequest, axes, blocks, describe, planes

FEWEST_COLUMNS = 40
COLUMNS_PER_HISTOGRAM = 20
"""Histograms take much more room than numbers, so there is one for this many columns."""
_TRIES = 12
_MARGIN = 0.93


def page(runs: Sequence[Run], columns: int, max_bytes: int, title: str) -> str:
    """The HTML page. Columns get wider, then statistics are left out, until it has at most ``max_bytes``."""
    share = 1.0
    bare = len(_page(b"", title))
    for _ in range(_TRIES):
        text = _page(_carried(runs, columns, share), title)
        if len(text) <= max_bytes:
            break
        fitting = _MARGIN * max(max_bytes - bare, 0) / (len(text) - bare)
        if columns > FEWEST_COLUMNS:
            columns = max(int(columns * fitting), FEWEST_COLUMNS)
        else:
            share *= fitting
    return text


def _page(data: bytes, title: str) -> str:
    sheet, carried = bundle.sheet(), base64.b64encode(data).decode()
    # modules inherit the nonce of the script that imports them; it is random, so no text in a report can know it
    nonce = bundle.digest(bundle.embedded_map() + carried)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src '{bundle.digest(sheet)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en" data-theme="system">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{html.escape(title)}</title>\n'
        f"<style>{sheet}</style>\n"
        f'<script type="importmap" nonce="{nonce}">{bundle.embedded_map()}</script>\n'
        f'<script nonce="{nonce}">{bundle.chart_library()}</script>\n'
        '</head>\n<body>\n<div id="page"></div>\n'
        f'<script type="text/plain" id="data">{carried}</script>\n'
        f'<script type="module" nonce="{nonce}">import "page/main.js";</script>\n</body>\n</html>\n'
    )


def _carried(runs: Sequence[Run], columns: int, share: float) -> bytes:
    """A JSON header with its length before it, all axes as float64, then all codes; compressed as a whole."""
    facts: list[dict[str, Any]] = []
    axis_bytes: list[bytes] = []
    code_bytes: list[bytes] = []
    for run in runs:
        described = []
        for block in blocks(run, WindowRequest(_series(run, share), resolution=columns)):
            carried = _planes(block)
            codes = quantise.plan(*(plane for name, plane in carried.items() if not name.startswith(NONFINITE)))
            described.append({**describe(block), "planes": list(carried), "codes": codes._asdict()})
            axis_bytes += [np.asarray(axis, "<f8").tobytes() for axis in axes(block.window)]
            code_bytes += _codes(carried, codes)
        facts.append(_facts(run, described, _histograms(run, int(share * columns) // COLUMNS_PER_HISTOGRAM)))
    header = json.dumps({"runs": facts}, allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % 8)
    whole = b"".join([len(header).to_bytes(4, "little"), header, *axis_bytes, *code_bytes])
    return gzip.compress(whole, 6, mtime=0)


def _series(run: Run, share: float) -> tuple[tuple[str, str], ...]:
    """A share of all statistics: those of the whole run first, lines before band edges, shares and counts."""
    known = [(lens.name, statistic) for lens in run.lenses.values() if lens.ticks for statistic in lens.statistics]
    known.sort(key=lambda pair: (pair[0] != WHOLE_RUN, pair[1].role != "line"))
    return tuple((lens, statistic.name) for lens, statistic in known[: math.ceil(share * len(known))])


def _histograms(run: Run, most: int) -> list[dict[str, Any]]:
    """At most so many histograms of each tag, evenly spread over the run, the newest among them; oldest first."""
    found = {}
    for lens in run.lenses.values():
        for tag in lens.histograms:
            for step in np.linspace(lens.last_step or 0, lens.first_step or 0, most, dtype=np.int64)[::-1].tolist():
                one = api.histogram(run, lens.name, tag, None, step)
                if one is not None:
                    found[lens.name, tag, one["step"]] = {"lens": lens.name, "tag": tag, **one}
    return list(found.values())


def _facts(run: Run, described: Sequence[Mapping[str, Any]], histograms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of a run, with only the statistics and histograms that the page contains."""
    head = api.head(run)
    carried = {(block["lens"], block["statistic"]) for block in described}
    binned = {(one["lens"], one["tag"]) for one in histograms}
    for lens in head["lenses"]:
        lens["histograms"] = [tag for tag in lens["histograms"] if (lens["name"], tag) in binned]
        lens["statistics"] = [known for known in lens["statistics"] if (lens["name"], known["name"]) in carried]
    size, ticks = run.path.stat().st_size, max((lens["ticks"] for lens in head["lenses"]), default=0)
    shared = {name: head[name] for name in ("name", "status", "error", "last_step", "age")}
    facts = {"ticks": ticks, "size": size, "problem": None, **shared}
    told = {"info": facts, "head": head, "events": api.events(run.events()), "summary": api.summary(run)}
    told["health"] = api.health(run)
    return {**told, "blocks": described, "histograms": histograms}


def _planes(block: WindowBlock) -> dict[str, NDArray[Any]]:
    """The arrays of a block; counts that need more than 16 bits have a second plane with the upper bits."""
    found = planes(block)
    counts = found.pop(NONFINITE, None)
    if counts is not None:
        high, low = np.divmod(counts.astype(np.int64), 2**16)
        found |= {NONFINITE: low, **({f"{NONFINITE}_high": high} if high.any() else {})}
    return found


def _codes(carried: Mapping[str, NDArray[Any]], codes: quantise.Codes) -> Iterator[bytes]:
    """The codes of the mean, and the differences of the others from it; counts are codes already."""
    mean = None
    for name, plane in carried.items():
        if name.startswith(NONFINITE):
            yield quantise.squeeze(plane.astype(np.uint16))
            continue
        found = quantise.encode(np.ascontiguousarray(plane, np.float32), codes)
        yield quantise.squeeze(found, mean)
        mean = found if mean is None else mean
