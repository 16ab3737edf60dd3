"""Serves runs to agents and other programs over the Model Context Protocol: read only, and never imports torch.

Answers are those of the command line with ``--json``, cut to a size that fits into the context of a language model.
"""

import argparse
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..cli.arguments import expression, tolerance
from ..cli.run_difference import compare_runs
from ..cli.run_facts import headline, listed, newest_frames
from ..cli.strict_json import answer
from ..dashboard.run_folder import RunFolder
from ..diagnosis import Finding, findings_of, verdict
from ..diagnosis.check import check_with_notes, without_diagnosis
from ..diagnosis.ranking import central, rank
from ..errors import MissingExtraError, MonitorchError, OptionError
from ..store import WHOLE_RUN, LensInfo, Run, Window

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError as error:
    raise MissingExtraError.needed_by("monitorch mcp", "mcp", "mcp") from error

T = TypeVar("T")
Answer = dict[str, Any]

POINTS, MOST_POINTS, MOST_LAYERS = 200, 2000, 20
EVIDENCE, EVENTS, WORST = 12, 20, 10
"""How many points of evidence, events and layers an answer has."""
LONGEST_MESSAGE = 1000

GUIDE = """\
Runs of PyTorch training, recorded layer by layer. Nothing here changes a run.
1. list_runs names the runs, newest first, with a verdict on each.
2. check_run says what is wrong in one: findings, first cause first, each with evidence and what to try. A finding with
   caused_by is a consequence: mend its cause.
3. describe_run has its settings, lenses, worst layers and events; find_series and read_series have its numbers.
4. compare_runs says where two runs part, and which settings differ.
In all answers NaN and infinity are the strings "nan", "inf" and "-inf"; null was not measured."""


class RunTools:
    """What a program may ask about the runs of a folder. The docstring of a method is what an agent reads about it.

    Args:
        folder: the folder of the runs, or of a single run; no other can be reached.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = RunFolder(folder)

    @property
    def tools(self) -> list[Callable[..., Answer]]:
        """All of them, in the order in which a program needs them."""
        return [
            *(self.list_runs, self.check_run, self.describe_run),
            *(self.find_series, self.read_series, self.compare_runs),
        ]

    def list_runs(self, matching: str = "", most: int = 20) -> Answer:
        """List the runs, newest first, each with its status and a verdict.

        Args:
            matching: only those whose name has a match for this regular expression.
            most: at most so many; `total` says how many there are.
        """
        pattern = expression(matching)
        found = [info for info in self._folder.infos() if pattern.search(info.name)]
        return {
            "folder": self._folder.folder,
            "total": len(found),
            "runs": [listed(info) for info in _some(found, most)],
        }

    def check_run(self, run: str, most: int = 20) -> Answer:
        """Say what is wrong in a run, where, since when, and what to try; judged from its stored numbers.

        Args:
            run: the name of the run.
            most: at most so many findings, first causes first; `total` says how many there are.
        """
        opened = self._folder.run(run)
        findings, notes = check_with_notes(opened)
        shown = [_short(finding) for finding in _some(findings, most)]
        return {**headline(opened, findings), "notes": notes, "total": len(findings), "findings": shown}

    def describe_run(self, run: str) -> Answer:
        """Describe a run: settings, model, what was measured, the layers that look worst, and the last events.

        Args:
            run: the name of the run.
        """
        opened = self._folder.run(run)
        ranked = rank(opened, findings_of(opened.meta) or ())
        worst = [
            {"layer": one.layer, "reason": one.reason, "lens": one.lens, "statistic": one.statistic.name}
            for one in ranked[:WORST]
            if one.tone
        ]
        head = {name: value for name, value in headline(opened).items() if name != "findings"}
        return {
            **head,
            "meta": without_diagnosis(opened.meta),
            "lenses": [_lens(lens) for lens in opened.lenses.values()],
            "worst_layers": worst,
            "events": opened.events()[-EVENTS:],
        }

    def find_series(self, run: str, matching: str = "", most: int = 20) -> Answer:
        """Find series of numbers by name, and sum each up over the whole run, before you read any in full.

        Args:
            run: the name of the run.
            matching: a regular expression, searched in `lens/statistic/layer`, in upper or lower case: `loss`,
                `gradient norm.*fc1`. Losses and other numbers of the whole model have the lens and layer `run`.
            most: at most so many; `total` says how many match. Series without a single number are left out.
        """
        opened, pattern = self._folder.run(run), expression(matching)
        lenses = sorted(opened.lenses.values(), key=lambda lens: lens.name != WHOLE_RUN)
        found: dict[tuple[str, str], list[str]] = {}
        for lens in lenses:
            for statistic in central(lens) if lens.ticks else ():
                name = f"{lens.name}/{statistic.name}"
                if layers := [layer for layer in lens.layers if pattern.search(f"{name}/{layer}")]:
                    found[lens.name, statistic.name] = layers
        total = sum(map(len, found.values()))
        return {"name": opened.name, "total": total, "series": list(islice(_summaries(opened, found), _count(most)))}

    def read_series(
        self,
        run: str,
        lens: str,
        statistic: str,
        layers: list[str] | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        points: int = POINTS,
    ) -> Answer:
        """Read series: the numbers of a statistic for some layers, averaged to a size that fits.

        A number is that of one tick where there is room for all; else `mean`, `minimum` and `maximum` of those from
        `step` to `last_step`. `nonfinite` counts samples that were NaN or infinite; it is left out if there are none.

        Args:
            run: the name of the run.
            lens: as find_series names it.
            statistic: as find_series names it.
            layers: the layers; left out, all that the lens has.
            first_step: the first step to read; left out, from the beginning.
            last_step: the last step to read; left out, to the end.
            points: at most so many points, of all layers together.
        """
        opened = self._folder.run(run)
        known = opened.lenses
        if lens not in known:
            raise OptionError.unknown("lens", lens, known)
        chosen = list(dict.fromkeys(layers)) if layers else list(known[lens].layers)
        if len(chosen) > MOST_LAYERS:
            raise OptionError(f"{lens} has {len(chosen)} of these layers: name at most {MOST_LAYERS} in layers")
        if not len(chosen) <= points <= MOST_POINTS:
            raise OptionError(f"points={points} must be from {len(chosen)}, one for each layer, to {MOST_POINTS}")
        window = opened.window(lens, statistic, first_step, last_step, points // len(chosen), chosen)
        is_single = bool((window.axis.step == window.last_step).all())
        ends = {} if is_single else {"last_step": window.last_step}
        planes = ("mean",) if is_single else ("mean", "minimum", "maximum")
        series = [_plain_row(window, place, planes) for place in range(len(window.layers))]
        return {
            "name": opened.name,
            "lens": lens,
            "statistic": statistic,
            "step": window.axis.step,
            **ends,
            "series": series,
        }

    def compare_runs(
        self,
        a: str,
        b: str,
        lens: str = "",
        statistic: str = "",
        layers: str = "",
        relative_tolerance: float = 1e-4,
        most: int = 20,
    ) -> Answer:
        """Say where, when and by how much two runs differ, earliest first; which settings differ; the newest losses.

        Args:
            a: the name of a run.
            b: the name of the other.
            lens: only lenses whose name has a match for this regular expression.
            statistic: only such statistics.
            layers: only such layers.
            relative_tolerance: the relative difference that counts as equal.
            most: at most so many statistics that differ, and names that only one run has; `total` says how many differ.
        """
        patterns = {"lens": lens, "statistic": statistic, "layers": layers}
        filters = {name: expression(text) if text else None for name, text in patterns.items()}
        options = argparse.Namespace(**filters, tolerance=tolerance(str(relative_tolerance)))
        one, other = self._folder.run(a), self._folder.run(b)
        difference = compare_runs(one, other, options)
        parted = difference.parted
        return {
            "a": one.name,
            "b": other.name,
            "verdict_a": verdict(findings_of(one.meta), one.status),
            "verdict_b": verdict(findings_of(other.meta), other.status),
            "same": difference.same,
            "total": len(parted),
            "statistics": _some(parted, most),
            "only_a": {kind: _some(names, most) for kind, names in difference.only_a.items()},
            "only_b": {kind: _some(names, most) for kind, names in difference.only_b.items()},
            "settings": difference.settings,
            "newest": difference.newest,
        }


def make_server(folder: str | os.PathLike[str]) -> MCPServer[Any]:
    """A server over the runs of a folder."""
    server: MCPServer[Any] = MCPServer("monitorch", instructions=GUIDE, version=__version__, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    for tool in RunTools(folder).tools:
        server.add_tool(_answering(tool), annotations=reads)
    return server


def serve(folder: str | os.PathLike[str]) -> None:
    """Answer on standard input and output, until the input ends."""
    make_server(folder).run("stdio")


def _answering(tool: Callable[..., Answer]) -> Callable[..., CallToolResult]:
    """The tool as the protocol wants it: JSON without spaces, which cost, and errors that can be read."""

    @functools.wraps(tool)
    def call(*arguments: Any, **options: Any) -> CallToolResult:
        try:
            found = answer(**tool(*arguments, **options))
        except (MonitorchError, OSError, argparse.ArgumentTypeError) as error:
            raise ToolError(str(error)[:LONGEST_MESSAGE]) from error
        text = json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text = text.encode("utf-8", "replace").decode()  # the name of a folder need not be text
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=json.loads(text))

    return call


def _some(found: Sequence[T], most: int) -> Sequence[T]:
    return found[: _count(most)]


def _count(most: int) -> int:
    if most < 0:
        raise OptionError(f"most={most} must be a number of at least 0")
    return most


def _short(finding: Finding) -> Answer:
    """A finding with less evidence: some of the points, evenly spread, the last one among them."""
    told = finding.to_json()
    for one in told["evidence"]:
        places = np.unique(np.linspace(0, max(len(one["steps"]) - 1, 0), EVIDENCE, dtype=int)).tolist()
        one |= {name: [one[name][place] for place in places if place < len(one[name])] for name in ("steps", "values")}
    return told


def _lens(lens: LensInfo) -> Answer:
    statistics = [statistic.name for statistic in central(lens)]
    steps = {"ticks": lens.ticks, "first_step": lens.first_step, "last_step": lens.last_step}
    return {"name": lens.name, "statistics": statistics, "layers": len(lens.layers), **steps}


def _summaries(run: Run, asked: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[Answer]:
    """Each series in one column, and its newest number; those of one statistic are read at once."""
    newest = newest_frames(run)
    for (lens, statistic), layers in asked.items():
        window, frame = run.window(lens, statistic, resolution=1, layers=layers), newest[lens]
        row = frame.values[frame.statistics.index(statistic)]
        for place, layer in enumerate(layers):
            names = {"lens": lens, "statistic": statistic, "layer": layer}
            numbers = {key: values[0] for key, values in _row(window, place, ("mean", "minimum", "maximum")).items()}
            if numbers["mean"] is not None:
                yield {**names, **numbers, "newest": row[frame.layers.index(layer)]}


def _plain_row(window: Window, place: int, planes: Sequence[str]) -> Answer:
    row = _row(window, place, planes)
    if not any(row["nonfinite"]):
        del row["nonfinite"]
    return {"layer": window.layers[place], **row}


def _row(window: Window, place: int, planes: Sequence[str]) -> dict[str, list[Any]]:
    """The numbers of one layer; None where nothing was measured."""
    counts: NDArray[Any] = window.nonfinite[place]
    measured = (window.finite[place] + counts > 0).tolist()
    rows = {name: getattr(window, name)[place] for name in planes}
    told = {
        name: [value if is_known else None for value, is_known in zip(row, measured, strict=True)]
        for name, row in rows.items()
    }
    return {**told, "nonfinite": counts.tolist()}
