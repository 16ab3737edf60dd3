"""What charts and the heat map draw: curves with few numbers, axes, bands, zeros; in a real browser."""

from itertools import pairwise

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from monitorch.store import Statistic, Writer
from monitorch.visualizer import StoreVisualizer

pytestmark = pytest.mark.xdist_group("browser")

RATE = "lens=Rates&statistic=Rate%2Fvalue"
COLLECT = """
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  const name = this.canvas.closest(".chart")?.querySelector("h3").textContent ?? this.canvas.className;
  ((window.written ??= {})[name] ??= []).push(text);
  return write.call(this, text, ...rest);
};
"""


@pytest.fixture
def written(page):
    """Keep what is written on every canvas, by the chart it belongs to; call it for what one chart says."""
    command = "Page.addScriptToEvaluateOnNewDocument"
    script = page.driver.execute_cdp_cmd(command, {"source": COLLECT})

    def texts(name):
        return list(dict.fromkeys(page.run("return window.written?.[arguments[0]] ?? []", name)))

    yield texts
    page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, serving):
    """The address of a run with a noisy loss, a rate that hardly changes, and an accuracy after every epoch."""
    folder = tmp_path_factory.mktemp("runs")
    with Writer(folder / "first", meta={"started": 1000.0}) as writer:
        writer.introduce_statistics("Dead", [Statistic("Dead/value", "linear", (0.0, 1.0))])
        for step in range(60):
            moment = {"epoch": step // 10, "time": 1000.0 + step / 100}
            loss = [[1.0], [-2.0], [4.0]]
            names = [f"Loss/train_loss {line}" for line in ("mean", "-σ", "+σ")]
            values, statistics = [*loss, [0.0011 + 4e-5 * np.sin(step / 9)]], [*names, "Logged/learning rate mean"]
            if step % 10 == 9:
                values, statistics = [*values, [step / 60]], [*statistics, "Logged/accuracy mean"]
            writer.put("run", step, values, layers=["run"], statistics=statistics, **moment)
            shares = [[0.0, 1e-3, 0.5 if step < 30 else 0.0]]
            writer.put("Dead", step, shares, layers=["none", "few", "half"], statistics=["Dead/value"], **moment)
    with serving(folder) as client:
        yield client.url


INKED = """
const charts = [...document.querySelectorAll(".strip .chart")];
const chart = charts.find((e) => e.querySelector("h3").textContent === arguments[0]);
const canvas = chart.querySelector("canvas"), copy = document.createElement("canvas");
[copy.width, copy.height] = [canvas.width, canvas.height];
const context = copy.getContext("2d", { willReadFrequently: true });
context.drawImage(canvas, 0, 0);
const { data } = context.getImageData(0, 0, copy.width, copy.height);
const heights = new Array(copy.width).fill(0);
const isCurve = (place) => data[place] < 60 && data[place + 1] > 90 && data[place + 2] > 80 && data[place + 3] > 200;
for (let y = 0; y < copy.height; y++)
  for (let x = 0; x < copy.width; x++) if (isCurve(4 * (y * copy.width + x))) heights[x]++;
return heights;
"""


def test_a_metric_logged_once_per_epoch_is_a_line_with_its_numbers_marked(visited, trained):
    visited.follow(f"{trained}#theme=light")
    heights = np.array(visited.run(INKED, "accuracy"))
    inked = np.flatnonzero(heights)
    assert len(inked) > 0.9 * (inked[-1] - inked[0])  # from the first number to the last without a gap
    assert (heights >= 4).sum() >= 6 * 2  # six numbers with marks wider than the line
    assert visited.texts(".strip .chart .value b")[2] == f"{59 / 60:.4g}"


def test_a_run_that_is_not_finite_hides_no_other(page, tmp_path, serving):
    for name, is_broken in (("whole", False), ("broken", True)):
        with Writer(tmp_path / name, meta={"started": 1000.0}) as writer:
            for step in range(40):
                loss = np.nan if is_broken and step >= 10 else 1.0 + step
                counts = ["Loss/train_loss nonfinite"], [[float(np.isnan(loss))]]
                names, values = ["Loss/train_loss mean", *counts[0]], [[loss], *counts[1]]
                writer.put("run", step, values, layers=["run"], statistics=names)
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=whole&compare=broken&theme=light")
        heights = np.array(page.run(INKED, "Loss"))
        inked = np.flatnonzero(heights)
        assert len(inked) > 0.95 * (inked[-1] - inked[0])
        assert inked[-1] > 0.9 * len(heights)
        page.driver.get("about:blank")


def test_the_whole_loss_is_shown_where_layers_have_numbers_of_some_steps_only(page, tmp_path, serving, written):
    with Writer(tmp_path / "first", meta={"started": 1000.0}) as writer:
        for step in range(100):
            writer.put("run", step, [[1.0 + step]], layers=["run"], statistics=["Loss/train_loss mean"])
            if 40 <= step < 50:
                writer.put("Rates", step, [[0.5]], layers=["fc"], statistics=["Rate/value"])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#{RATE}&theme=light")
        inked = np.flatnonzero(page.run(INKED, "Loss"))
        assert {"20", "80"} <= set(written("Loss"))
        assert len(inked) > 0.85 * (inked[-1] - inked[0])  # the curve goes from end to end
        row = page.run(
            "const canvas = document.querySelector('.heat-canvas'), copy = document.createElement('canvas');"
            "[copy.width, copy.height] = [canvas.width, canvas.height];"
            "const context = copy.getContext('2d'); context.drawImage(canvas, 0, 0);"
            "return Array.from(context.getImageData(0, Math.floor(copy.height / 2), copy.width, 1).data)"
        )
        colours = np.array(row).reshape(-1, 4)
        measured = np.flatnonzero((colours != colours[0]).any(axis=1)) / len(colours)
        assert measured[[0, -1]] == pytest.approx([0.4, 0.5], abs=0.02)
        page.driver.get("about:blank")


def test_axes_have_names_and_no_two_labels_are_equal(page, trained, written):
    page.open(f"{trained}#x=time&layer=half")
    rates = written("learning rate")
    labels = [text for text in rates if text[0].isdigit() and not text.endswith(" s")]
    assert {"time", "learning rate"} <= set(rates)
    assert len(labels) >= 2
    assert len(set(labels)) == len(labels)
    assert np.ptp([float(text) for text in labels]) == pytest.approx(4e-5, rel=1)
    assert {"time", "Dead"} <= set(written("Dead"))
    assert len([text for text in rates if text.endswith(" s")]) >= 2  # of half a second
    assert page.texts(".axis-name") == ["time"]


def test_a_band_of_a_loss_does_not_reach_below_zero(page, trained, written):
    page.open(f"{trained}#theme=light")
    assert [text for text in written("Loss") if "−" in text] == []
    assert "4" in written("Loss")


# a band is a thin layer of the colour of its curve
TINTED = INKED.replace(
    "data[place] < 60 && data[place + 1] > 90 && data[place + 2] > 80 && data[place + 3] > 200",
    "data[place + 1] - data[place] > 40 && data[place + 3] > 10",
)


BANDS = {
    "deviation": ("mean", ("-σ", "+σ")),
    "quartiles": ("median", ("Q1", "Q3")),
    "range": ("median", ("min", "max")),
    "percentiles": ("mean", ("5 %", "95 %")),
}


def test_every_band_of_a_stored_run_is_drawn_around_its_line(page, tmp_path, serving):
    for run, (line, band) in BANDS.items():
        with StoreVisualizer(tmp_path, run) as store:
            for step in range(40):
                edges = {tuple(f"train_loss {edge}" for edge in band): (1.0, 4.0)}
                store.plot_numerical_values(step, "Loss", {"Loss": {f"train_loss {line}": 2.0}}, {"Loss": edges})
    with serving(tmp_path) as client:
        for run in BANDS:
            page.follow(f"{client.url}#run={run}&theme=light")
            heights = np.array(page.run(TINTED, "Loss"))
            inside = heights[np.flatnonzero(heights)]
            height = page.run("return document.querySelector('.strip .chart canvas').height")
            assert np.median(inside) > 0.4 * height
            assert page.texts(".strip .chart .value b") == ["2"]  # the line is the number, not an edge
        page.driver.get("about:blank")


def test_zero_looks_like_nothing_else_and_the_legend_names_it(visited, trained):
    visited.follow(f"{trained}#lens=Dead&statistic=Dead%2Fvalue&theme=light&map=viridis")
    script = (
        "const c = document.querySelector('.heat-canvas'), [row, share] = arguments;"
        "const label = [...document.querySelectorAll('.gutter .label')].find(e => e.title === row);"
        "const y = label.offsetTop + label.offsetHeight / 2 - 10, copy = document.createElement('canvas');"
        "copy.width = copy.height = 20; const context = copy.getContext('2d', { willReadFrequently: true });"
        "context.drawImage(c, -Math.floor(share * c.width), -y); "
        "return [...new Uint32Array(context.getImageData(0, 0, 20, 20).data.buffer)]"
    )

    def colours(row, share):
        return {tuple(np.uint32(pixel).tobytes()[:3]) for pixel in visited.run(script, row, share)}

    small, zero = colours("few", 0.25), colours("none", 0.25)
    assert len(small) == 1
    assert len(zero) > 1  # lines across it
    assert (220, 222, 219) in zero
    assert all(max(colour) - min(colour) < 16 for colour in zero)  # no colour of the scale is grey
    assert (220, 222, 219) not in colours("half", 0.25)
    assert (220, 222, 219) in colours("half", 0.75)
    assert visited.texts(".legend .swatch-text") == ["Zero", "NaN or Inf"]


def test_an_estimate_says_how_far_off_it_may_be(page, tmp_path, serving):
    known = [Statistic.of("Norm", "mean", error=0.011), Statistic.of("Exact", "mean")]
    with Writer(tmp_path / "first") as writer:
        writer.introduce_statistics("Lens", known)
        for step in range(3):
            values = [[1.0, np.nan], [2.0, 2.0]]
            writer.put("Lens", step, values, layers=["fc", "gone"], statistics=[one.name for one in known])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=first&lens=Lens&statistic=Norm%2Fmean&layer=fc")
        assert page.texts(".charts .pair") == ["1± 1.1 %", "2"]
        for row, text in (("fc", "1 ± 1.1 %"), ("gone", "NaN (not finite)")):
            place = page.run(
                "const all = [...document.querySelectorAll('.gutter .label')], plot = document.querySelector('.plot');"
                "const own = all.find(e => e.title === arguments[0]);"
                "return own.offsetTop + own.offsetHeight / 2 - plot.clientHeight / 2",
                row,
            )
            plot = page.driver.find_element(By.CSS_SELECTOR, ".plot")
            page.mouse(ActionChains(page.driver).move_to_element_with_offset(plot, 0, int(place)))
            assert page.texts(".tip-value") == [text]
        page.keys("4")
        assert page.texts("caption") == ["Norm ± 1.1 %, steps 0 to 2"]


def test_the_page_says_when_it_has_drawn_everything(page, site):
    page.open(f"{site}#run=first&{RATE}")
    first = page.drawn()
    assert first >= 1
    held = (
        "const ask = window.fetch, held = new Promise((free) => { window.free = free; });"
        "window.fetch = async (address) => { if (address.includes('api/events')) await held; return ask(address); }"
    )
    page.run(held)
    page.run("location.hash = 'run=broken'")
    page.until(lambda: page.drawn_step() == 24)
    assert page.drawn() is None  # the heat map is there, its alerts are not
    assert page.texts(".count") == []
    page.run("window.free()")
    page.settle()
    assert page.texts(".count") == ["1"]
    assert page.drawn() > first


def test_the_point_on_a_curve_is_where_the_number_above_it_is_from(page, tmp_path, serving):
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        for step in range(30):
            losses = {"Loss/train_loss mean": 1.0 / (1 + step)}
            losses |= {"Loss/val_loss mean": 2.0 / (1 + step)} if step % 10 == 0 else {}
            values = [[value] for value in losses.values()]
            writer.put("run", step, values, layers=["run"], statistics=list(losses))
            writer.put("Norms", step, [[1.0 + step]], layers=["fc"], statistics=["Norm/mean"])
    points = (
        "return [...document.querySelectorAll('.strip .u-cursor-pt')].map((e) => e.style.transform)"
        ".filter((place) => place !== 'translate(0px, 0px)')"  # of a curve that is not drawn
    )
    found = {}
    with serving(tmp_path) as client:
        for step in (10, 18, 19):  # nearer to the next evaluation than to the last one
            page.open(f"{client.url}#run=run&at={step}")
            found[step] = page.texts(".strip .value b"), page.run(points)
    assert [numbers[1] for numbers, _ in found.values()] == ["0.1818"] * 3
    evaluated = found[10][1].pop()
    assert [places.pop() for _, places in (found[18], found[19])] == [evaluated] * 2


def test_labels_of_an_axis_do_not_touch_its_name(page, tmp_path, serving):
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        for step in range(4):
            shares = [[0.003205 + 0.000005 * step]]
            writer.put("Shares", step, shares, layers=["fc"], statistics=["Output Norm Comparison/mean"])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=run&layer=fc")
        widest = (
            "const plot = document.querySelector('.layer .u-over'); const name = 15;"
            "const context = document.createElement('canvas').getContext('2d');"
            "context.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue('--sans')}`;"
            "return parseFloat(plot.style.left) - name - context.measureText('3.205e−3').width"
        )
        assert page.run(widest) >= 2


def test_an_axis_of_numbers_that_explode_has_labels(page, tmp_path, serving, written):
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        for step in range(8):
            writer.put("run", step, [[9e34 * step / 7]], layers=["run"], statistics=["Loss/train_loss mean"])
            writer.put("Norms", step, [[1.0 + step]], layers=["fc"], statistics=["Norm/mean"])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=run")
        assert {"0", "2e34", "4e34", "6e34", "8e34"} < set(written("Loss"))


# what is written in small charts, with its left, right, upper and lower end
TEXTS = """
const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
window.written = new Map();
CanvasRenderingContext2D.prototype.clearRect = function (...rest) {
  window.written.set(this.canvas, []);
  return clearRect.apply(this, rest);
};
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const width = this.measureText(text).width, { b, e, f } = this.getTransform();
  const left = x + e - (this.textAlign === 'right' ? width : this.textAlign === 'center' ? width / 2 : 0);
  const top = y + f - (this.textBaseline === 'top' ? 0 : 5);
  if (this.canvas.closest('.small-charts') && !b)  // what stands upright has a place of its own
    window.written.get(this.canvas)?.push([text, left, left + width, top, top + 10]);
  return fillText.call(this, text, x, y, ...rest);
};
"""


@pytest.fixture
def small_charts(page, tmp_path, serving, window):
    """The texts in each of five small charts beside a loss, of a run with some steps and values."""

    def look(steps, value):
        page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": TEXTS})  # goes with the tab
        with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
            for step in steps:
                numbers = {"Loss/train_loss mean": 1.0, **{f"Logged/rate {place} mean": value for place in range(5)}}
                values = [[number] for number in numbers.values()]
                writer.put("run", step, values, layers=["run"], statistics=list(numbers))
                writer.put("Norms", step, [[1.0 + step]], layers=["fc"], statistics=["Norm/mean"])
        with serving(tmp_path) as client:
            window(1280, 800)
            page.open(f"{client.url}#run=run")
            charts = page.run("return [...window.written.values()].filter((texts) => texts.length)")
        assert len(charts) == 5
        return charts

    return look


def test_no_label_of_an_axis_touches_the_name_of_the_other(small_charts):
    for places in small_charts(range(8), 0.01):
        (_, _, right, top, _), *_ = [place for place in places if place[0] == "step"]
        labels = [(text, left, bottom) for text, left, _, _, bottom in places if text.startswith("0.0")]
        assert labels
        assert [text for text, left, bottom in labels if left < right and bottom > top] == []


@pytest.mark.parametrize("last", [1700, 2600, 17_000])
def test_no_two_labels_of_an_axis_touch(small_charts, last):
    for places in small_charts(range(last // 20, last + 1, last // 10), 0.01):
        steps = sorted((left, right) for text, left, right, *_ in places if text != "step" and text[:2] != "0.")
        assert steps
        assert [one for one, other in pairwise(steps) if one[1] + 3 > other[0]] == []
