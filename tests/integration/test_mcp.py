"""Runs served to programs: asked with the client of the SDK, in this process and over standard input and output."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from monitorch import cli
from monitorch.diagnosis import RunFacts, signals
from monitorch.diagnosis.check import FACTS
from monitorch.integration.mcp import EVIDENCE, MOST_LAYERS, POINTS, make_server
from monitorch.store import Statistic, Writer, open_run
from monitorch.store.samples import SampleArrays
from monitorch.store.tiles import absent

TICKS, LAYERS = 1000, tuple(f"blocks.{place}.fc" for place in range(300))
TOOLS = ["list_runs", "check_run", "describe_run", "find_series", "read_series", "compare_runs"]


def norms(tick):
    """What each layer has at a tick; the second is infinite once, the third is not measured before tick 500."""
    row = (np.arange(1, len(LAYERS) + 1) * (1 + np.sin(tick / 50) / 2)).astype(np.float32)
    row[1] = np.inf if tick == 700 else row[1]
    row[2:3] = absent([1]) if tick < 500 else row[2:3]
    return row


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A large run, one whose inputs are far too large, a broken file, and a run elsewhere."""
    root = tmp_path_factory.mktemp("agents")
    with Writer(root / "runs" / "large", meta={"config": {"lr": 0.1}}) as writer:
        writer.introduce_layers(LAYERS)
        writer.introduce_statistics("Norms", [Statistic("Norm/mean")])
        for tick in range(TICKS):
            writer.put("Norms", 2 * tick, [norms(tick)], layers=LAYERS, statistics=["Norm/mean"])
            loss = [[np.exp(-tick / 300)], [0.1]]
            names = ["Loss/train_loss mean", "Loss/train_loss -σ"]
            writer.put("run", 2 * tick, loss, layers=["run"], statistics=names)
    with Writer(root / "runs" / "sick", meta={FACTS: RunFacts().to_json(), "config": {"lr": 0.2}}) as writer:
        for step in range(1, 101):
            writer.put("run", step, [[2.0]], layers=["run"], statistics=["Loss/train_loss mean"])
        for signal, value in {signals.INPUT_STD: 290.0, signals.INPUT_MEAN: 0.0, signals.FEATURE_SPREAD: 1.0}.items():
            samples = SampleArrays(np.arange(1, 101), np.zeros(100, int), np.full(100, value))
            writer.put_samples(signal, samples, writer="w", first=0, names=["input"], replaces=False)
    (root / "runs" / "broken").mkdir()
    (root / "runs" / "broken" / "rank0.db").write_bytes(b"no database" * 100)
    with Writer(root / "secret") as writer:
        writer.put("run", 1, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
    return root / "runs"


def ask_all(server, *questions):
    """The answers to questions, each the name of a tool and its arguments."""

    async def converse():
        async with Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in questions]

    return asyncio.run(converse())


@pytest.fixture(scope="module")
def ask(folder):
    """Ask a tool; gives what it says, or fails."""

    def run(tool, **arguments):
        (result,) = ask_all(make_server(folder), (tool, arguments))
        assert not result.is_error, result.content
        (content,) = result.content
        assert json.loads(content.text, parse_constant=pytest.fail) == result.structured_content
        assert result.structured_content["schema"] == 1
        return SimpleNamespace(characters=len(content.text), **result.structured_content)

    return run


def by_command(capsys, *arguments):
    cli.main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_program_gets_to_the_cause_over_standard_input_and_output(folder):
    """Also what a program reads before it asks: instructions, and tools that say they change nothing."""

    async def converse():
        command = ["-m", "monitorch", "mcp", str(folder)]
        async with Client(StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))) as client:
            tools = (await client.list_tools()).tools
            runs = (await client.call_tool("list_runs", {})).structured_content["runs"]
            found = (await client.call_tool("check_run", {"run": "sick"})).structured_content
            return client.instructions, tools, runs, found

    guide, tools, runs, found = asyncio.run(converse())
    assert [tool.name for tool in tools] == TOOLS
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in tools)
    assert all(tool.description and tool.name in guide for tool in tools)
    assert {run["name"]: run["verdict"] for run in runs} == {
        "large": "not diagnosed",
        "sick": "not diagnosed",
        "broken": None,
    }
    assert found["verdict"] == "1 problem since step 1"
    (finding,) = found["findings"]
    assert (finding["symptom"], finding["severity"], finding["caused_by"]) == ("input_scale", "warning", None)
    assert "290" in finding["explanation"]


def test_runs_are_listed_as_the_command_lists_them(ask, folder, capsys):
    told = ask("list_runs")
    listed = by_command(capsys, "runs", folder)["runs"]
    assert [{**run, "age": 0} for run in told.runs] == [{**run, "age": 0} for run in listed]
    assert (told.total, told.folder) == (3, str(folder))
    some = ask("list_runs", matching="^LARGE|bro", most=1)
    assert (some.total, len(some.runs)) == (2, 1)
    assert ask("list_runs", matching="nothing").runs == []


def test_findings_are_those_of_the_command_with_less_evidence(ask, folder, capsys):
    told = ask("check_run", run="sick")
    facts = by_command(capsys, "check", folder / "sick")
    assert (told.verdict, told.total, told.last_step) == (facts["verdict"], 1, 100)
    for ours, theirs in zip(told.findings, facts["findings"], strict=True):
        assert {**ours, "evidence": None} == {**theirs, "evidence": None}
        for short, whole in zip(ours["evidence"], theirs["evidence"], strict=True):
            pairs = list(zip(whole["steps"], whole["values"], strict=True))
            kept = list(zip(short["steps"], short["values"], strict=True))
            assert set(kept) <= set(pairs)
            assert kept[-1] == pairs[-1]
            assert len(kept) <= EVIDENCE < len(pairs)
    assert ask("check_run", run="sick", most=0).findings == []


def test_a_run_is_described_in_short(ask):
    told = ask("describe_run", run="large")
    assert told.meta["config"] == {"lr": 0.1}
    assert [lens["name"] for lens in told.lenses] == ["Norms", "run"]
    assert told.lenses[0] == {
        "name": "Norms",
        "statistics": ["Norm/mean"],
        "layers": 300,
        "ticks": TICKS,
        "first_step": 0,
        "last_step": 2 * TICKS - 2,
    }
    assert told.lenses[1]["statistics"] == ["Loss/train_loss mean"]  # without edges of bands
    assert told.worst_layers == []
    assert told.characters < 3000
    assert not hasattr(told, "findings")


def test_series_are_found_by_name_and_summed_up(ask):
    told = ask("find_series", run="large", matching="norm.*blocks.[12].fc$")
    values = np.array([norms(tick) for tick in range(TICKS)])
    assert told.total == 2
    infinite, late = told.series
    assert (infinite["layer"], late["layer"]) == (LAYERS[1], LAYERS[2])
    assert infinite["nonfinite"] == 1
    assert late["nonfinite"] == 0
    for one, column in ((infinite, np.delete(values[:, 1], 700)), (late, values[500:, 2])):
        assert one["minimum"] == pytest.approx(column.min(), rel=1e-6)
        assert one["maximum"] == pytest.approx(column.max(), rel=1e-6)
        assert one["mean"] == pytest.approx(column.astype(float).mean(), rel=1e-5)
        assert np.float32(one["newest"]) == column[-1]
    everything = ask("find_series", run="large")
    assert (everything.total, len(everything.series)) == (301, 20)
    assert everything.series[0]["statistic"] == "Loss/train_loss mean"
    assert everything.characters < 5000


def test_a_series_that_fits_is_told_tick_by_tick(ask, folder):
    told = ask(
        "read_series",
        run="large",
        lens="Norms",
        statistic="Norm/mean",
        layers=[LAYERS[1]],
        first_step=1300,
        last_step=1500,
    )
    assert told.step == list(range(1300, 1501, 2))
    assert not hasattr(told, "last_step")
    (series,) = told.series
    with open_run(folder / "large") as run:
        expected = run.series("Norms", "Norm/mean", LAYERS[1], 1300, 1500).values
    assert np.array_equal(np.array(series["mean"], float).astype(np.float32), expected)
    assert series["mean"][50] == "inf"
    assert series["nonfinite"] == [int(place == 50) for place in range(101)]


def test_a_long_series_is_told_in_few_columns(ask):
    told = ask("read_series", run="large", lens="Norms", statistic="Norm/mean", layers=list(LAYERS[:3]))
    columns = len(told.step)
    assert POINTS // 3 // 4 < columns <= POINTS // 3
    assert told.characters < 8000
    values = np.array([norms(tick) for tick in range(TICKS)], float)
    for column, (first, last) in enumerate(zip(told.step, told.last_step, strict=True)):
        here = values[first // 2 : last // 2 + 1]
        one = told.series[0]
        assert one["mean"][column] == pytest.approx(here[:, 0].mean(), rel=1e-5)
        assert one["minimum"][column] == pytest.approx(here[:, 0].min(), rel=1e-6)
        assert one["maximum"][column] == pytest.approx(here[:, 0].max(), rel=1e-6)
        assert told.series[1]["nonfinite"][column] == int(first <= 1400 <= last)
        assert (told.series[2]["mean"][column] is None) is (last < 1000)
    assert "nonfinite" not in told.series[0]


def test_all_layers_of_a_small_lens_need_not_be_named(ask):
    told = ask("read_series", run="sick", lens="run", statistic="Loss/train_loss mean")
    assert told.series == [{"layer": "run", "mean": [2.0] * 100}]


def test_two_runs_are_compared_as_the_command_compares_them(ask, folder, capsys):
    told = ask("compare_runs", a="large", b="sick")
    facts = by_command(capsys, "compare", folder / "large", folder / "sick")
    parted = [one for one in facts["statistics"] if one["first"]]
    assert (told.same, told.statistics, told.total) == (False, parted, 1)
    assert told.settings == facts["settings"] == {"config.lr": [0.1, 0.2]}
    assert told.newest == facts["newest"]
    assert told.newest["Loss/train_loss mean"] == [pytest.approx(np.exp(-999 / 300)), 2.0]
    assert (told.verdict_a, told.verdict_b) == (facts["verdict_a"], facts["verdict_b"])
    assert (told.only_a, told.only_b) == (facts["only_a"], facts["only_b"])
    assert told.only_a["lenses"] == ["Norms"]
    few = ask("compare_runs", a="large", b="sick", most=0)
    assert (few.total, few.statistics, few.only_a["lenses"]) == (1, [], [])
    loose = ask("compare_runs", a="large", b="sick", statistic="loss", lens="run", relative_tolerance=0.99)
    assert (loose.total, loose.statistics) == (0, [])
    assert ask("compare_runs", a="sick", b="sick").same is True


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("check_run", {"run": "nothing"}, "there is no run 'nothing'; there are broken, large, sick"),
        ("check_run", {"run": "../secret"}, "there is no run '../secret'"),
        ("describe_run", {"run": ".."}, "there is no run '..'"),
        ("describe_run", {"run": ""}, "there is no run ''"),
        ("describe_run", {"run": "broken"}, "rank0.db"),
        ("check_run", {"run": "large"}, "cannot be diagnosed"),
        ("check_run", {}, "run"),
        ("check_run", {"run": "sick", "most": -1}, "most=-1 must be a number of at least 0"),
        ("list_runs", {"matching": "("}, "'(' is not a regular expression"),
        ("read_series", {"run": "large", "lens": "Norm", "statistic": "Norm/mean"}, "choose from 'Norms', 'run'"),
        ("read_series", {"run": "large", "lens": "run", "statistic": "Norm/mean"}, "Loss/train_loss mean"),
        ("read_series", {"run": "large", "lens": "Norms", "statistic": "Norm/mean"}, f"name at most {MOST_LAYERS}"),
        ("read_series", {"run": "sick", "lens": "run", "statistic": "Loss/train_loss mean", "points": 0}, "points=0"),
        ("read_series", {"run": "sick", "lens": "run", "statistic": "Loss/train_loss mean", "points": 9999}, "2000"),
        ("compare_runs", {"a": "large", "b": "sick", "relative_tolerance": -1}, "is not a number of at least 0"),
        ("compare_runs", {"a": "large", "b": "sick", "layers": "xyz"}, "matches nothing"),
    ],
)
def test_what_is_wrong_with_a_question_is_said(folder, tool, arguments, message):
    wrong, right = ask_all(make_server(folder), (tool, arguments), ("list_runs", {}))
    assert wrong.is_error
    assert message in wrong.content[0].text
    assert len(wrong.content[0].text) < 1200
    assert not right.is_error  # it goes on


def test_a_run_is_followed_while_it_trains(tmp_path):
    question = "read_series", {"run": "live", "lens": "run", "statistic": "Loss/train_loss mean"}

    async def converse(writer):
        async with Client(make_server(tmp_path)) as client:
            for step in range(2):
                writer.put("run", step, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
                writer.flush()
                yield (await client.call_tool(*question)).structured_content["step"]

    async def steps(writer):
        return [found async for found in converse(writer)]

    with Writer(tmp_path / "live") as writer:
        assert asyncio.run(steps(writer)) == [[0], [0, 1]]


def test_a_name_that_is_no_text_is_told(tmp_path):
    with Writer(tmp_path / "x") as writer:
        writer.put("run", 1, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
    (tmp_path / "x").rename(tmp_path / os.fsdecode(b"\xff"))
    (result,) = ask_all(make_server(tmp_path), ("list_runs", {}))
    assert result.structured_content["runs"][0]["name"] == "?"


def test_the_document_names_every_tool():
    text = (Path(__file__).parents[2] / "docs" / "how_to" / "agents.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == TOOLS


def run_fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_serving_does_not_load_torch():
    assert run_fresh("import sys, monitorch.integration.mcp; print('torch' in sys.modules)") == (0, "False", "")


def test_without_the_sdk_the_command_says_how_to_get_it():
    code = "import sys; sys.modules['mcp'] = None\nfrom monitorch.cli import main; sys.exit(main(['mcp']))"
    message = "monitorch: error: monitorch mcp needs the package 'mcp': pip install 'monitorch[mcp]'"
    assert run_fresh(code) == (1, "", message)


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    assert cli.main(["mcp", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
