"""The page in windows of all sizes; in a real browser."""

from itertools import pairwise

import numpy as np
import pytest

from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Layer, Writer
from tests.marks import slow

pytestmark = pytest.mark.xdist_group("browser")

NAME = "an_experiment_with_a_name_that_is_much_longer_than_a_telephone_is_wide"
LAYERS = [f"transformer.encoder.layers.{index}.self_attention.projection.weight" for index in range(5)]


@pytest.fixture(scope="module")
def wordy(tmp_path_factory, serving):
    """The address of a page over runs whose names, settings and alerts are long."""
    folder = tmp_path_factory.mktemp("wordy")
    for number in range(3):
        config = {"data": "/a/path/that/" + "goes/on/and/" * 12 + "on", "word": "x" * 90, "rate": number}
        with Writer(folder / f"{NAME}_{number}", meta={"started": 1000.0, "config": config}) as writer:
            writer.introduce_layers([Layer(name, "Parameter", 12) for name in LAYERS])
            for step in range(8):
                norms = [[1.0 + index + step for index in range(5)]]
                writer.put("Norms", step, norms, layers=LAYERS, statistics=["A Norm with a long Name/mean"])
                losses = [[1 / (1 + step)]] * 7
                names = [f"Loss {index} of a long name/train_loss mean" for index in range(7)]
                writer.put("run", step, losses, layers=["run"], statistics=names)
            body = {"reason": "a reason that is " + "long " * 30, "word": "y" * 120}
            writer.event(3, "an_alert_with_a_long_name", "warning", layer=LAYERS[0], body=body)
            writer.note(error={"type": "RuntimeError", "message": "z" * 150, "traceback": ["w" * 200]})
    with serving(folder) as client:
        yield client.url


@pytest.mark.parametrize("width", [360, *map(slow, (390, 768, 1024, 1440, 2560))])
def test_nothing_is_wider_than_the_window(page, wordy, window, width):
    window(width)
    compared = "&".join(f"compare={NAME}_{number}" for number in (1, 2))
    page.open(f"{wordy}#run={NAME}_0&{compared}&difference=1&layer={LAYERS[2]}")
    size = "const e = document.documentElement; return [e.scrollWidth, e.clientWidth, visualViewport.scale]"
    found = {"Layer": page.run(size)}
    for tab in ("Alerts2", "Runs", "Table"):
        page.click("[role=tab]", tab)
        found[tab] = page.run(size)
    assert found == {tab: [width, width, 1] for tab in found}


def test_few_layers_do_not_make_charts_and_rows_grow_without_end(page, wordy, window):
    window(2560, 1300)
    page.open(f"{wordy}#run={NAME}_0&layer={LAYERS[2]}")
    heights = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().height)"
    assert max(page.run(heights, ".chart")) <= 250
    assert max(page.run(heights, ".label")) <= 72


def test_all_charts_of_the_whole_run_can_be_reached_in_a_small_window(page, wordy, window):
    window(360, 640)
    page.open(f"{wordy}#run={NAME}_0")
    widths = page.run("return [...document.querySelectorAll('.strip .chart')].map((e) => e.clientWidth)")
    assert len(widths) == 7
    assert min(widths) >= 140
    assert page.run("const e = document.querySelector('.strip'); return e.scrollWidth - e.clientWidth") == 0


def test_charts_stand_in_rows_of_about_equally_many(page, wordy, window):
    found = {}
    for width in (360, 1440, 2560):
        window(width)
        page.open(f"{wordy}#run={NAME}_0")
        tops = page.run("return [...document.querySelectorAll('.strip .chart')].map((e) => e.offsetTop)")
        found[width] = [tops.count(top) for top in sorted(set(tops))]
    assert found == {360: [2, 2, 2, 1], 1440: [4, 3], 2560: [7]}


@pytest.mark.parametrize("width", [slow(1600), 1920, slow(2560)])
def test_charts_beside_the_loss_are_no_narrow_towers_over_the_list_of_runs(page, tmp_path, serving, window, width):
    names = ["Loss/train_loss mean", *(f"Logged/metric {place} mean" for place in range(6))]
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        for step in range(4):
            writer.put("run", step, [[place + step] for place in range(7)], layers=["run"], statistics=names)
    with serving(tmp_path) as client:
        window(width, 1080)
        page.open(f"{client.url}#run=run&tab=runs")
        sizes = page.run(
            "return [...document.querySelectorAll('.small-charts .chart')].map((e) => [e.offsetWidth, e.offsetHeight])"
        )
    assert len(sizes) == 6, sizes
    assert all(chart_width > height for chart_width, height in sizes), sizes


@pytest.mark.parametrize("width", [360, pytest.param(1440, marks=pytest.mark.slow)])
def test_every_curve_of_a_small_chart_is_named_with_its_number(page, tmp_path, serving, window, width):
    names = ["Warning Output Activations/worst activation_rate", "Warning Output Activations/worst death_rate"]
    for run in ("first", "second"):
        with Writer(tmp_path / run, meta={"started": 1000.0}) as writer:
            for step in range(4):
                writer.put("run", step, [[0.5377], [0.3751]], layers=["run"], statistics=names)
                metrics = [f"Logged/metric {place} mean" for place in range(5)]
                writer.put("more", step, [[1.0]] * 5, layers=["run"], statistics=metrics)
    window(width)
    script = (
        "const charts = [...document.querySelectorAll('.strip .chart')];"
        "const values = charts.find((e) => e.textContent.startsWith('Warning')).querySelector('.values');"
        "const box = values.getBoundingClientRect();"
        "const inside = (e) => { const r = e.getBoundingClientRect();"
        " return r.top >= box.top && r.bottom <= box.bottom + 1 && r.right <= box.right + 1; };"
        "return [...values.querySelectorAll('bdi, b')].filter(inside).map((e) => e.textContent)"
    )
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=first")
        assert page.run(script) == ["worst activation rate", "0.5377", "worst death rate", "0.3751"]
        page.open(f"{client.url}#run=first&compare=second")
        numbers = ["0.5377"] * 2, ["0.3751"] * 2
        assert page.run(script) == ["worst activation rate", *numbers[0], "worst death rate", *numbers[1]]
        page.driver.get("about:blank")


def test_a_long_exception_leaves_the_bar_in_one_line(page, wordy, window):
    window(1440)
    page.open(f"{wordy}#run={NAME}_0")
    bar, line, status = (
        page.run("return document.querySelector(arguments[0]).getBoundingClientRect().height", selector)
        for selector in (".top", ".error-line", ".status")
    )
    assert line <= status
    assert bar < 2 * status + 20


def test_facts_of_a_run_do_not_run_into_the_options(page, tmp_path, make_run, serving, window):
    for name in ("first", "second"):
        make_run(tmp_path / name, findings=[], overhead=0.1234, overhead_at_least=True)
    apart = (
        "const facts = document.querySelector('.facts');"
        "const [a, b] = [facts, document.querySelector('.view-options')].map((e) => e.getBoundingClientRect());"
        "return [facts.title === facts.textContent, a.bottom < b.top || a.right <= b.left]"
    )
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=first&compare=second")
        found = {}
        for width in range(1200, 1500, 50):
            page.redraw(lambda width=width: window(width))
            found[width] = page.run(apart)
    assert found == {width: [True, True] for width in found}


def test_a_heat_map_that_was_hidden_has_its_rows_again(page, wordy, window):
    for height in (450, 900):  # in a low window the map has the same height before and after
        window(1440, height)
        page.open(f"{wordy}#run={NAME}_0")
        assert page.rows() == LAYERS
        for tab in ("Runs", "Table"):
            page.click("[role=tab]", tab)
        assert (page.rows(), page.texts(".heat .empty")) == (LAYERS, []), height


def test_a_heat_map_that_comes_into_view_has_the_columns_that_fit_it(page, wordy, window):
    window(1440)
    page.open(f"{wordy}#run={NAME}_0&tab=runs")
    assert page.texts(".heat-panel") == []
    page.click("[role=tab]", "Layer")
    asked = (
        "return performance.getEntriesByType('resource').map((e) => new URL(e.name))"
        ".filter((url) => url.pathname === '/api/windows' && url.searchParams.get('plane') === 'maximum')"
        ".map((url) => Number(url.searchParams.get('resolution')))"
    )
    width = page.run("return document.querySelector('.plot').clientWidth")
    assert page.run(asked)[-1] == width // 2


def test_a_run_without_numbers_says_so_and_offers_nothing_to_choose(page, tmp_path, serving):
    for name, end in {"over": "finished", "going": None}.items():
        writer = Writer(tmp_path / name, meta={"started": 1000.0})
        writer.flush()
        if end:
            writer.close(end)
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=over")
        assert page.texts(".heat > .empty") == ["This run has no numbers."]
        assert page.texts(".layer .empty") == ["No layer has numbers."]
        chosen = "return ['.legend', '.statistic'].filter((e) => {"
        chosen += "const options = { visibilityProperty: true };"
        chosen += "return document.querySelector(e).checkVisibility(options) })"
        assert page.run(chosen) == []
        page.click("[role=tab]", "Table")
        assert page.texts(".table-tab table, .table-tab .empty") == ["No layer has numbers."]
        page.follow(f"{client.url}#run=going")
        assert page.texts(".heat > .empty") == ["This run has no numbers yet."]
        page.driver.get("about:blank")
    writer.close()


def test_a_filter_that_nothing_passes_is_named_beside_the_rows_too(page, wordy):
    page.open(f"{wordy}#run={NAME}_0&search=nothing")
    assert page.texts(".layer .empty") == ["No layer matches the filter."]


def test_a_name_at_the_lower_edge_is_not_cut(page, tmp_path, serving, window):
    layers = [f"block{place}" for place in range(40)]
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        for step in range(4):
            writer.put("Norms", step, [[1.0] * 40], layers=layers, statistics=["Norm/mean"])
    spans = (
        "return ['.gutter', '.gutter .label'].map((e) => [...document.querySelectorAll(e)].map((node) => {"
        "const box = node.getBoundingClientRect(); return [box.top, box.bottom] }))"
    )
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=run&sort=name")
        for height in range(360, 560, 10):
            page.redraw(lambda height=height: window(1280, height))
            ((_, end),), names = page.run(spans)
            assert max(bottom for _, bottom in names) <= end + 1, height
            assert all(top >= above - 3 for (_, above), (top, _) in pairwise(names)), height


def test_a_screen_reader_is_told_the_status_but_not_every_second(page, wordy):
    page.open(f"{wordy}#run={NAME}_0")
    assert page.texts("[role=status]") == ["finished"]


CONTRASTS = """
const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const read = (colour) => {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  const [r, g, b, alpha] = pixel.getImageData(0, 0, 1, 1).data;
  return [[r, g, b], alpha / 255];
};
const over = ([colour, alpha], below) => colour.map((part, place) => part * alpha + below[place] * (1 - alpha));
const behind = (node) =>
  node ? over(read(getComputedStyle(node).backgroundColor), behind(node.parentElement)) : [255, 255, 255];
const light = (colour) => {
  const share = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = colour.map((part) => share(part / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
};
const isText = (node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim();
const options = { visibilityProperty: true, opacityProperty: true };
return [...document.querySelectorAll("#page *")]
  .filter((node) => node.checkVisibility(options) && !node.disabled && [...node.childNodes].some(isText))
  .map((node) => {
    const below = behind(node);
    const [one, other] = [light(over(read(getComputedStyle(node).color), below)), light(below)];
    return [Math.max(one, other) / Math.min(one, other), `${node.className}: ${node.textContent}`];
  })
  .filter(([contrast]) => contrast < 4.5);
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_words_can_be_read_on_what_is_behind_them(page, tmp_path, serving, theme):
    kinds = [("error", None), ("warning", None), ("info", None), ("error", 6)]
    findings = [
        Finding(f"symptom{place}", severity, f"fc{place}", 1, 2, "It is so.", Remedy("Do."), resolved_at=end)
        for place, (severity, end) in enumerate(kinds)
    ]
    for name, end in {"one": "finished", "two": "crashed"}.items():
        with Writer(tmp_path / name, meta={"started": 1000.0}) as writer:
            for step in range(8):
                norms = [[1.0 + step, 2.0, 3.0, np.nan, 1000.0**step]]
                layers = [f"fc{place}" for place in range(5)]
                writer.put("Norms", step, norms, layers=layers, statistics=["Norm/mean"])
                writer.put("run", step, [[np.nan]], layers=["run"], statistics=["Loss/train_loss mean"])
            for severity in ("info", "warning", "error"):
                writer.event(3, severity, severity, layer="fc1", body={"reason": "why"})
            writer.note(findings=[one.to_json() for one in findings[: 4 if end == "crashed" else 0]])
            writer.close(end)
    with serving(tmp_path) as client:
        for state in ("run=two", "run=two&tab=alerts", "run=two&tab=table", "run=one&compare=two&tab=runs"):
            page.follow(f"{client.url}#{state}&theme={theme}")
            page.run("for (const node of document.querySelectorAll('details')) node.open = true")
            assert page.run(CONTRASTS) == [], state
        page.driver.get("about:blank")


def test_lines_of_the_bar_on_top_begin_at_the_same_place(page, wordy, window):
    left = "return document.querySelector(arguments[0]).getBoundingClientRect().left"
    for width in range(360, 440, 10):
        window(width, 800)
        page.open(f"{wordy}#run={NAME}_0")
        assert [page.run(left, part) for part in (".brand", ".verdict", ".view-options")] == [10, 10, 10], width


def test_what_has_a_label_has_a_role_or_nobody_would_hear_it(page, wordy):
    page.open(f"{wordy}#run={NAME}_0")
    assert page.run("return document.querySelectorAll('div[aria-label]:not([role])').length") == 0
