"""The histogram at the cursor, in a real browser."""

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from monitorch.dashboard import report_html
from monitorch.store import Statistic, Writer

pytestmark = pytest.mark.xdist_group("browser")

LAYERS = ("fc.weight", "fc.bias")
EDGES = np.linspace(-4, 4, 65)
STEPS = range(10, 60, 10)
SHAPE = "lens=Shapes&statistic=Shape%2Fq50&layer=fc.weight"
INKED = """
const canvas = document.querySelector(".histogram canvas"), copy = document.createElement("canvas");
[copy.width, copy.height] = [canvas.width, canvas.height];
const context = copy.getContext("2d", { willReadFrequently: true });
context.drawImage(canvas, 0, 0);
const { data } = context.getImageData(0, 0, copy.width, copy.height - 20 * devicePixelRatio);
const heights = new Array(copy.width).fill(0);
for (let place = 0; place < data.length; place += 4)
  if (data[place + 3] > 40) heights[(place / 4) % copy.width]++;
const top = Math.max(...heights); // lines of the grid
return heights.map((height) => height === top ? 0 : height);
"""


def counts_at(step, scale=1.0):
    """A bell that moves to the right: of 1000 weights, and of 500 biases half of which are 0."""
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    bell = np.exp(-((middles - (step - 30) / 20 * scale) ** 2) * 4)
    return [np.floor(1000 * bell / bell.sum()).astype(int), np.floor(500 * bell / bell.sum()).astype(int)]


LINES = (
    Statistic.of("Shape", "q50"),
    Statistic.of("Shape", "q01", role="edge", band="q01-q99", side="low"),
    Statistic.of("Shape", "q99", role="edge", band="q01-q99", side="high"),
)


def put(writer, step, scale=1.0):
    middle = (step - 30) / 20 * scale
    values = [[middle, middle], [middle - 2.5, middle - 2.5], [middle + 2.5, middle + 2.5]]
    names = [one.name for one in LINES]
    writer.put("Shapes", step, values, layers=LAYERS, statistics=names, epoch=step // 10)
    writer.put_histograms("Shapes", "Shape", step, counts_at(step, scale), layers=LAYERS, edges=EDGES)


def fill(folder, scale=1.0):
    with Writer(folder) as writer:
        writer.introduce_layers(LAYERS)
        writer.introduce_statistics("Shapes", LINES)
        for step in STEPS:
            put(writer, step, scale)
        writer.note(tick_unit="tick")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory, serving):
    """The address of two runs with histograms, and of one without."""
    folder = tmp_path_factory.mktemp("runs")
    fill(folder / "first")
    fill(folder / "second", scale=0.5)
    with Writer(folder / "plain") as writer:
        for step in STEPS:
            writer.put("Shapes", step, [[1.0]], layers=LAYERS[:1], statistics=["Shape/q50"])
    with serving(folder) as client:
        yield client.url


def caption(page):
    return page.texts(".histogram figcaption > span")


def told(step):
    weights, biases = (f"{sum(counts):,} elements" for counts in counts_at(step))
    return [f"step {step}", f"weight: {weights}", f"bias: {biases}"]


def test_without_a_cursor_it_is_the_newest_and_at_a_pinned_step_the_one_there(page, shapes):
    page.open(f"{shapes}#run=first&{SHAPE}")
    assert caption(page) == told(50)
    page.open(f"{shapes}#run=first&{SHAPE}&at=30")
    assert caption(page) == told(30)
    label = page.run("return document.querySelector('.histogram canvas').getAttribute('aria-label')")
    assert label == "Histogram, " + ", ".join(told(30))


def test_it_follows_the_mouse_over_the_heat_map_and_the_chart(page, shapes):
    page.open(f"{shapes}#run=first&{SHAPE}")
    for selector in (".plot", ".charts .chart-body"):
        panel = page.driver.find_element(By.CSS_SELECTOR, selector)
        page.mouse(ActionChains(page.driver).move_to_element(panel))
        assert caption(page) == told(30)
        page.mouse(ActionChains(page.driver).move_to_element(page.driver.find_element(By.CSS_SELECTOR, ".brand")))
        assert caption(page) == told(50)


def test_it_follows_the_cursor_keys(page, shapes):
    page.open(f"{shapes}#run=first&{SHAPE}")
    page.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert caption(page) == told(40)
    page.keys(Keys.ARROW_LEFT)
    assert caption(page) == told(30)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_its_shape_is_that_of_the_counts_on_the_axis_of_the_chart(page, shapes, theme):
    middles = []
    for step in (20, 30, 40):
        page.open(f"{shapes}#run=first&{SHAPE}&at={step}&theme={theme}")
        heights = np.array(page.run(INKED), float)
        places = np.flatnonzero(heights > 0.5 * heights.max())
        middles.append((places[0] + places[-1]) / 2 / len(heights))
    # all medians and bands are from -3.5 to 3.5, with a margin of 6 % on both sides
    expected = [0.5 + (step - 30) / 20 / (7 * 1.12) for step in (20, 30, 40)]
    np.testing.assert_allclose(middles, expected, atol=0.04)


def test_another_run_is_beside_it_in_its_own_colour(page, shapes):
    page.open(f"{shapes}#run=first&compare=second&compare=plain&{SHAPE}&at=20")
    names = [text.partition(":")[0] for text in caption(page)]
    assert names == ["step 20", "first weight", "first bias", "second weight", "second bias"]
    colours = page.run(
        "return [...document.querySelectorAll('.histogram .dot')].map(e => getComputedStyle(e).backgroundColor)"
    )
    assert colours[0] == colours[1] != colours[2] == colours[3]


def test_while_a_run_trains_the_newest_is_shown_and_a_pinned_one_stays(page, tmp_path, serving):
    with Writer(tmp_path / "first") as writer, serving(tmp_path) as client:
        writer.introduce_statistics("Shapes", LINES)
        put(writer, 10)
        writer.flush()
        page.open(f"{client.url}#run=first&{SHAPE}")
        assert caption(page) == told(10)
        for step in (20, 30):
            put(writer, step)
            writer.flush()
            page.wait(lambda step=step: caption(page) == told(step))
        page.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        assert caption(page) == told(20)
        put(writer, 40)
        writer.flush()
        page.wait(lambda: page.drawn_step() == 40)
        assert caption(page) == told(20)
        page.driver.get("about:blank")


def test_a_run_without_histograms_has_no_room_for_them(page, shapes):
    page.open(f"{shapes}#run=plain&{SHAPE}")
    assert page.texts(".charts .chart h3") == ["Shape"]
    assert page.run("return document.querySelectorAll('.histogram').length") == 0


def test_what_was_seen_is_not_asked_for_again(page, shapes):
    page.open(f"{shapes}#run=first&{SHAPE}")
    asked = "return performance.getEntriesByType('resource').filter(e => e.name.includes('/histogram')).length"
    before = page.run(asked)
    page.keys(*[Keys.ARROW_LEFT] * 3, *[Keys.ARROW_RIGHT] * 3, *[Keys.ARROW_LEFT] * 3)
    assert caption(page) == told(20)
    assert page.run(asked) - before == 4


def test_the_axis_of_ticks_is_called_so(page, shapes):
    page.open(f"{shapes}#run=first&{SHAPE}&x=epoch")
    assert page.texts(".top [role=radio]")[:3] == ["Step", "Tick", "Time"]
    assert page.texts(".axis-name") == ["tick"]
    page.mouse(ActionChains(page.driver).move_to_element(page.driver.find_element(By.CSS_SELECTOR, ".plot")))
    assert page.texts(".tip .muted")[0].startswith("tick 3")
    page.open(f"{shapes}#run=plain&{SHAPE}&x=epoch")
    assert page.texts(".top [role=radio]")[:3] == ["Step", "Epoch", "Time"]
    assert page.texts(".axis-name") == ["epoch"]


def test_a_report_has_some_of_them(page, tmp_path):
    fill(tmp_path / "first")
    report = report_html(tmp_path / "first", columns=60).save(tmp_path / "report.html")
    page.open(f"{report.as_uri()}#run=first&{SHAPE}")
    assert caption(page) == told(50)
    for asked, step in ((40, 30), (30, 30), (20, 10), (10, 10)):
        page.open(f"{report.as_uri()}#run=first&{SHAPE}&at={asked}")
        assert caption(page) == told(step)
