"""Logarithms on the page: of the axis of all panels, of a chart, of colours; in a real browser."""

import json
import math

import matplotlib as mpl
import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from monitorch.store import Statistic, Writer
from tests.marks import slow

pytestmark = pytest.mark.xdist_group("browser")

RATE = "lens=Rates&statistic=Rate%2Fvalue"
CORRELATIONS = ((-1.0, 0.5), (-0.02, 0.02), (0.0, 0.003))
"""At two ticks, for each of three layers."""


def logarithmic(place, first, end):
    """How far from left to right a place is; zero stands half-way before the first place after it."""
    return math.log(place / (first / 2)) / math.log(end / (first / 2))


def tick_labels(page):
    """What is written below the heat map, from left to right, and where."""
    page.run(
        "const write = CanvasRenderingContext2D.prototype.fillText; window.labels = [];"
        "CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {"
        "  const share = x / this.canvas.clientWidth, isTick = this.canvas.className === 'ticks';"
        "  if (isTick && share <= window.labels.at(-1)?.[1]) window.labels.length = 0;"  # it is drawn once more
        "  if (isTick) window.labels.push([text, share]);"
        "  return write.call(this, text, x, ...rest); }"
    )
    page.redraw(lambda: page.keys("m"))
    return page.run("return window.labels")


@pytest.mark.parametrize(("axis", "places"), [("step", range(24)), ("time", range(24)), ("epoch", np.arange(24) / 6)])
def test_columns_of_a_logarithmic_axis_are_where_their_logarithms_are(visited, site, sample, axis, places):
    visited.follow(f"{site}#run=first&{RATE}&theme=light&x={axis}&logx=1")
    first, end = places[1], places[23] + places[1]
    for tick in (0, 1, 5, 22):
        low = logarithmic(places[tick], first, end) if tick else 0.0
        high = logarithmic(places[tick + 1], first, end)
        wanted = 255 * np.array(mpl.colormaps["viridis"](sample.rate(3, tick))[:3])
        assert np.abs(np.array(visited.cell("block.1.fc", (low + high) / 2)[:3]) - wanted).max() <= 10


def test_labels_of_a_logarithmic_axis_are_round_and_in_their_places(page, site):
    page.open(f"{site}#run=first&{RATE}&logx=1")
    labels = tick_labels(page)
    assert [text for text, _ in labels] == ["0", "1", "2", "5", "10", "20"]
    assert [x for _, x in labels[1:]] == pytest.approx(
        [logarithmic(int(text), 1, 24) for text, _ in labels[1:]], abs=0.02
    )


def test_the_logarithmic_axis_is_a_button_a_key_and_part_of_the_link(page, site):
    page.open(f"{site}#run=first&{RATE}")
    page.click(".toggle", "Log")
    assert "logx=1" in page.driver.current_url
    assert page.texts(".toggle[aria-pressed=true]") == ["Log"]
    page.keys("X")
    assert "logx" not in page.driver.current_url
    assert page.texts(".toggle[aria-pressed=true]") == []


@pytest.mark.parametrize("axis", [slow("step"), slow("epoch"), "time"])
def test_the_cursor_and_a_zoom_know_the_logarithmic_axis(page, site, sample, axis):
    page.open(f"{site}#run=first&{RATE}&layer=conv&x={axis}&logx=1")
    assert page.texts(".charts h3") == ["Rate", "Norm"]
    canvas = page.driver.find_element(By.CSS_SELECTOR, ".heat-canvas")
    width = canvas.rect["width"]
    from_left = [int(width * (logarithmic(tick + 0.5, 1, 24) - 0.5)) for tick in (3, 10)]
    mouse = ActionChains(page.driver)
    page.mouse(mouse.move_to_element_with_offset(canvas, from_left[0], 0))
    assert page.texts(".charts .value b")[0] == f"{sample.rate(0, 3):.4g}"
    page.mouse(mouse.click_and_hold().move_by_offset(from_left[1] - from_left[0], 0).release())
    assert page.drawn_step() == 10
    assert "first=3&last=10" in page.driver.current_url


def test_a_chart_is_brushed_along_the_logarithmic_axis(page, site):
    page.open(f"{site}#run=first&{RATE}&layer=conv&logx=1")
    assert page.texts(".charts h3") == ["Rate", "Norm"]
    plot = page.driver.find_element(By.CSS_SELECTOR, ".charts .u-over")
    ends = [int(plot.rect["width"] * (logarithmic(step, 1, 24) - 0.5)) for step in (2, 12)]
    drag = ActionChains(page.driver).move_to_element_with_offset(plot, ends[0], 0).click_and_hold()
    page.mouse(drag.move_by_offset(ends[1] - ends[0], 0).release())
    assert page.drawn_step() == 12
    assert "first=2&last=12" in page.driver.current_url


@pytest.fixture(scope="module")
def signed(tmp_path_factory, serving):
    """The address of a run with correlations."""
    folder = tmp_path_factory.mktemp("signed")
    with Writer(folder / "first") as writer:
        writer.introduce_statistics("Geometry", [Statistic("Correlation/mean", "linear", (-1.0, 1.0))])
        for step, values in enumerate(zip(*CORRELATIONS, strict=True)):
            layers, statistics = ["first", "second", "third"], ["Correlation/mean"]
            writer.put("Geometry", step, [values], layers=layers, statistics=statistics)
            writer.put("Norms", step, [[1.0, 2.0, 3.0]], layers=layers, statistics=["Norm/mean"])
    with serving(folder) as client:
        yield client.url


def test_what_is_signed_is_offered_symlog_and_no_logarithm(page, signed):
    page.open(f"{signed}#layer=second&theme=light")
    assert sorted(page.texts(".charts h3")) == ["Correlation", "Norm"]
    scale = ".charts .scale[aria-label^='Scale of {}']"
    found = {"Correlation": [], "Norm": []}
    for _ in range(4):
        for name, seen in found.items():
            seen.append(page.texts(scale.format(name))[0])
            page.click(scale.format(name))
    assert found == {"Correlation": ["lin", "sym", "lin", "sym"], "Norm": ["lin", "log", "sym", "lin"]}


def test_a_link_that_asks_for_the_logarithm_of_what_is_signed_gets_symlog(visited, signed):
    scales = json.dumps({"Geometry/Correlation": "log"})
    visited.follow(f"{signed}#layer=second&scales={scales}")
    assert visited.texts(".charts .scale[aria-label='Scale of Correlation: symlog']") == ["sym"]


def test_a_loss_that_explodes_is_logarithmic_unless_another_scale_is_asked_for(page, tmp_path, serving):
    for name, peak in {"calm": 3.0, "exploded": 3e20}.items():
        with Writer(tmp_path / name, meta={"started": 1000.0}) as writer:
            for step in range(9):
                values = {"Loss/train_loss mean": peak if step == 6 else 2.0, "Logged/speed mean": 10.0**step}
                statistics = list(values)
                writer.put("run", step, [[value] for value in values.values()], layers=["run"], statistics=statistics)
    scales = [".large-charts .scale", ".small-charts .scale"]
    with serving(tmp_path) as client:
        found = {}
        for choices in ("run=calm", "run=exploded", "run=exploded&last=5", "run=calm&compare=exploded"):
            page.open(f"{client.url}#{choices}")
            found[choices] = [page.texts(scale)[0] for scale in scales]
        page.click(scales[0])
        asked = page.texts(scales[0])
        page.driver.get("about:blank")
    assert found == {
        "run=calm": ["lin", "lin"],
        "run=exploded": ["log", "lin"],
        "run=exploded&last=5": ["lin", "lin"],
        "run=calm&compare=exploded": ["log", "lin"],
    }
    assert asked == ["sym"]


def test_colours_of_what_is_signed_can_be_symlog(visited, signed):
    visited.follow(f"{signed}#lens=Geometry&statistic=Correlation%2Fmean&theme=light")
    linear = [visited.cell(layer, 0.25) for layer in ("first", "second", "third")]
    visited.click(".legend [data-value=log]")
    assert visited.texts(".legend .muted") == ["symlog"]
    colours = [visited.cell(layer, 0.25) for layer in ("first", "second", "third")]
    assert colours[0] == linear[0]  # the ends and the middle stay
    assert colours[2] == pytest.approx(linear[2], abs=2)
    blueness = [colour[2] - colour[0] for colour in (linear[1], colours[1])]
    assert blueness[0] < 20 < 60 < blueness[1]


def test_a_logarithmic_chart_of_zeros_alone_has_an_even_scale_and_does_not_keep_the_page_busy(page, tmp_path, serving):
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        writer.introduce_statistics("Updates", [Statistic("Update Ratio/mean", "log")])
        for step in range(4):
            writer.put("Updates", step, [[0.0, 0.1 * step]], layers=["frozen", "fc"], statistics=["Update Ratio/mean"])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=run&layer=frozen")
        assert page.texts(".layer .scale") == ["lin"]
        assert page.texts(".layer .values b") == ["0"]
        page.follow(f"{client.url}#run=run&layer=fc")
        assert page.texts(".layer .scale") == ["log"]
