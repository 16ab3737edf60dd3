"""The file of a report: what it may do, and how large it is."""

import base64
import gzip
import hashlib
import json
import re

import numpy as np
import pytest

from monitorch.dashboard import Report, report, report_html
from monitorch.diagnosis import Finding, Remedy
from monitorch.errors import OptionError, StoreError
from monitorch.store import Writer, open_run


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """100 layers with 20 statistics, as hard to compress as numbers of a training are."""
    folder = tmp_path_factory.mktemp("runs") / "noisy"
    random, walk = np.random.default_rng(0), np.zeros((20, 100))
    with Writer(folder) as writer:
        for step in range(1000):
            walk += random.normal(0, 0.05, walk.shape)
            values = np.exp(walk + random.normal(0, 0.1, walk.shape))
            layers, statistics = [f"block.{i}" for i in range(100)], [f"Tag {i}/value" for i in range(20)]
            writer.put("Noise", step, values, layers=layers, statistics=statistics)
            if step % 100 == 0:
                writer.flush()
    return folder


def test_a_hundred_layers_with_twenty_statistics_are_less_than_six_megabytes(noisy):
    assert len(report_html(noisy, columns=500, max_bytes=10**9).html) < 6_000_000


def test_a_report_is_no_larger_than_it_may_be(noisy):
    shown = report_html(noisy)._repr_mimebundle_()["text/html"]
    assert len(shown.encode()) < 1_000_000


def carried(html):
    """The header of the data."""
    data = gzip.decompress(base64.b64decode(re.search(r'id="data">([^<]+)<', html)[1]))
    return json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])


def test_where_columns_do_not_help_statistics_are_left_out(noisy):
    html = report_html(noisy, max_bytes=500_000).html
    (run,) = carried(html)["runs"]
    (lens,) = run["head"]["lenses"]
    assert len(html) <= 500_000
    assert 0 < len(lens["statistics"]) < 20
    assert [block["statistic"] for block in run["blocks"]] == [statistic["name"] for statistic in lens["statistics"]]


def test_losses_are_left_out_last_and_bands_first(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer.put("Norms", 0, [[1.0], [2.0], [0.5]], layers=["fc"], statistics=["N/max", "N/mean", "N/nonfinite"])
        writer.put("run", 0, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
    with open_run(tmp_path / "run") as run:
        assert report._series(run, 0.5) == (("run", "Loss/train_loss mean"), ("Norms", "N/mean"))


@pytest.mark.parametrize(("columns", "steps"), [(40, [0, 59]), (59, [0, 59]), (60, [0, 29, 59]), (4000, range(60))])
def test_histograms_are_evenly_spread_and_fewer_where_there_is_less_room(tmp_path, columns, steps):
    layers, edges = ["a", "b"], [0, 1, 2, 3]
    with Writer(tmp_path / "run") as writer:
        for step in range(60):
            writer.put("L", step, [[1.0, 2.0]], layers=layers, statistics=["Shape/q50"])
            writer.put_histograms("L", "Shape", step, [[0, step, 1], [0, 2, 0]], layers=layers, edges=edges)
    (run,) = carried(report_html(tmp_path / "run", columns=columns).html)["runs"]
    assert [one["step"] for one in run["histograms"]] == list(steps)
    newest = {
        "lens": "L",
        "tag": "Shape",
        "step": 59,
        "layers": layers,
        "edges": [1, 2, 3],
        "counts": [[59, 1], [2, 0]],
    }
    assert run["histograms"][-1] == newest
    assert [lens["histograms"] for lens in run["head"]["lenses"]] == [["Shape"]]


def test_histograms_for_which_there_is_no_room_are_not_named(tmp_path):
    layers, random = [f"layer{place}" for place in range(300)], np.random.default_rng(0)
    with Writer(tmp_path / "run") as writer:
        for step in range(30):
            writer.put("L", step, [random.normal(size=300)], layers=layers, statistics=["Shape/q50"])
            counts = random.integers(0, 2**40, (300, 40))
            writer.put_histograms("L", "Shape", step, counts, layers=layers, edges=range(41))
    html = report_html(tmp_path / "run", max_bytes=490_000).html
    (run,) = carried(html)["runs"]
    assert len(html) <= 490_000
    assert run["histograms"] == run["head"]["lenses"][0]["histograms"] == []


@pytest.mark.parametrize("count", [3, 70_000, 3_000_000])
def test_counts_are_carried_however_large_they_are(tmp_path, count):
    with Writer(tmp_path / "run") as writer:
        for step in range(3):
            names = {"layers": ["a", "b"], "statistics": ["N/mean", "N/nonfinite"]}
            writer.put("Norms", step, [[1.0, 2.0], [0, count * (step == 1)]], **names)
    data = gzip.decompress(base64.b64decode(re.search(r'id="data">([^<]+)<', report_html(tmp_path / "run").html)[1]))
    length = int.from_bytes(data[:4], "little")
    found = json.loads(data[4 : 4 + length])["runs"][0]["blocks"]
    mean = next(block for block in found if block["statistic"] == "N/mean")
    offset = 4 + length + sum(4 * 8 * block["columns"] for block in found)
    offset += sum(2 * 2 * block["columns"] * len(block["planes"]) for block in found[: found.index(mean)])
    halves = []
    for plane in mean["planes"]:
        raw = np.frombuffer(data, np.uint8, 2 * 6, offset).astype(np.int64)
        codes = np.cumsum((raw[:6] + 256 * raw[6:]).reshape(2, 3), axis=1) % 2**16
        halves += [codes] if plane.startswith("nonfinite") else []
        offset += 2 * 6
    assert len(halves) == 1 + (count > 65535)
    assert sum(half << 16 * place for place, half in enumerate(halves)).tolist() == [[0, 0, 0], [0, count, 0]]


def test_only_the_scripts_and_the_sheet_of_the_page_may_run(tmp_path, make_run):
    html = report_html(make_run(tmp_path / "first")).html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    assert re.findall("unsafe|connect-src|data: *;", policy.replace("img-src data: blob:", "")) == []
    (sheet,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert f"style-src 'sha256-{base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()}'" in policy
    (nonce,) = re.findall(r"script-src 'nonce-([^']+)';", policy)
    opened = re.findall(r"<script( [^>]*)?>", html)
    assert opened == [
        f' type="importmap" nonce="{nonce}"',
        f' nonce="{nonce}"',
        ' type="text/plain" id="data"',
        f' type="module" nonce="{nonce}"',
    ]


def test_a_nonce_belongs_to_one_report(tmp_path, make_run):
    nonces = {
        re.search(r"'nonce-([^']+)'", report_html(make_run(tmp_path / name, shift=shift)).html)[1]
        for name, shift in (("first", 0.0), ("second", 0.1))
    }
    assert len(nonces) == 2


def test_a_report_of_a_crashed_run_carries_what_ended_it(tmp_path, new_run):
    new_run(tmp_path / "bad").close("crashed", error=KeyError("lr"))
    shown = report_html(tmp_path / "bad")
    assert repr(shown) == "bad: crashed (KeyError: 'lr') at step 23, 5 layers"
    (run,) = carried(shown.html)["runs"]
    assert run["head"]["error"] == run["info"]["error"]
    assert (run["info"]["error"]["type"], run["info"]["problem"]) == ("KeyError", None)


def test_a_report_carries_the_health_of_its_runs(tmp_path, new_run):
    writer = new_run(tmp_path / "sick")
    dead = Finding("dead_units", "error", "conv", 3, 5, "No unit is active.", Remedy("Lower the rate."))
    writer.note(findings=[dead.to_json()])
    writer.close()
    (facts,) = carried(report_html(tmp_path / "sick").html)["runs"]
    assert facts["health"]["verdict"] == facts["summary"]["verdict"] == "1 problem since step 3"
    assert facts["health"]["findings"] == [dead.to_json()]
    assert facts["health"]["layers"][0] == "conv"


def test_names_stay_inside_of_the_data(tmp_path, make_run):
    hostile = "</script><script>alert(1)</script>"
    html = report_html(make_run(tmp_path / "<b>&run", layers=[hostile])).html
    assert hostile not in html
    assert "<title>&lt;b&gt;&amp;run · monitorch</title>" in html
    data = re.search(r'id="data">([^<]+)<', html)[1]
    assert hostile.encode() in gzip.decompress(base64.b64decode(data))


def test_a_run_that_is_open_stays_open(tmp_path, make_run):
    with open_run(make_run(tmp_path / "first")) as run:
        shown = report_html(run)
        assert run.last_step == 23
    assert isinstance(shown, Report)
    assert repr(shown) == "first: finished at step 23, 5 layers"
    assert shown._repr_mimebundle_()["text/plain"] == repr(shown)
    assert shown.save(tmp_path / "report.html").read_text(encoding="utf-8") == shown.html


@pytest.mark.parametrize(
    ("runs", "options", "error", "message"),
    [
        ([], {}, OptionError, "report_html takes at least one run"),
        (["first"], {"columns": 1}, OptionError, "columns=1 must be a whole number from 40 to 4000"),
        (["first"], {"max_bytes": 1000}, OptionError, "max_bytes=1000 is too small: the page itself takes about"),
        (["nothing"], {}, StoreError, "there is no run in .*nothing; runs beside it: first"),
    ],
)
def test_a_wrong_question_names_the_cure(tmp_path, make_run, runs, options, error, message):
    make_run(tmp_path / "first", steps=2)
    with pytest.raises(error, match=message):
        report_html(*(tmp_path / run for run in runs), **options)
