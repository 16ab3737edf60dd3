"""A report in a real browser, opened as a file."""

import re

import matplotlib as mpl
import numpy as np
import pytest

from monitorch.dashboard import report_html

pytestmark = pytest.mark.xdist_group("browser")

HOSTILE = "</script><script>alert(1)</script>"
RATE = "lens=Rates&statistic=Rate%2Fvalue"


@pytest.fixture
def report(tmp_path, new_run, make_run, sample):
    writer = new_run(tmp_path / "first", note=HOSTILE)
    values = [[0.5, np.nan, np.inf, -np.inf, 0.5]]
    writer.put("Rates", 24, values, layers=sample.layers, statistics=["Rate/value"])
    writer.event(24, HOSTILE, "error", layer="head")
    writer.close()
    make_run(tmp_path / "second", shift=0.25)
    return report_html(tmp_path / "first", tmp_path / "second")


def test_a_report_opens_from_the_disk(page, report, tmp_path, sample):
    page.open(f"{report.save(tmp_path / 'report.html').as_uri()}#{RATE}&layer=conv&theme=light")
    wanted = 255 * np.array(mpl.colormaps["viridis"](sample.rate(3, 12))[:3])
    assert np.abs(np.array(page.cell("block.1.fc", 12.5 / 25)[:3]) - wanted).max() <= 10
    for layer in ("block.0.fc", "block.0.norm", "block.1.fc"):
        assert page.cell(layer, 0.999)[:3] == [240, 36, 92]
    assert page.texts(".charts h3") == ["Rate", "Norm"]
    assert page.texts(".status") == ["finished"]
    page.click("[role=tab]", "Alerts1")
    assert page.texts(".alert b") == [HOSTILE]


def test_a_report_of_two_runs_opens_with_both(page, report, tmp_path):
    page.open(report.save(tmp_path / "report.html").as_uri())
    assert page.texts(".chip bdi") == ["first", "second"]
    page.click(".chip button")
    assert page.texts(".chip bdi") == []
    page.driver.refresh()
    page.settle()
    assert page.texts(".chip bdi") == []  # the address says so


def test_a_report_zooms_and_compares(page, report, tmp_path):
    page.open(f"{report.save(tmp_path / 'report.html').as_uri()}#{RATE}&first=5&last=9&tab=table")
    assert page.texts("caption") == ["Rate, steps 5 to 9"]
    page.click("[role=tab]", "Runs")
    assert sorted(page.texts(".run-list tbody .metric")) == ["0.0417", "0.2917"]  # losses of both
    page.click("input[aria-label='Compare with second']")
    assert page.texts(".chip bdi") == ["first", "second"]


def test_a_notebook_shows_it_in_a_frame_that_reaches_nothing(page, report, tmp_path):
    html = report._repr_mimebundle_()["text/html"]
    assert re.match(r'<iframe sandbox="allow-scripts allow-downloads" srcdoc="', html)
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{html}", encoding="utf-8")
    page.driver.get(notebook.as_uri())
    page.driver.switch_to.frame(0)
    page.wait(lambda: page.drawn_step() == 24)
    assert page.run("return self.origin") == "null"
    page.driver.switch_to.default_content()
