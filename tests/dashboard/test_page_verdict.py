"""What the page says about the health of a run; in a real browser."""

import pytest

from monitorch.dashboard import api, report_html
from monitorch.diagnosis import Evidence, Finding, Remedy
from monitorch.store import Layer, Statistic, Writer, open_run
from tests.marks import slow

pytestmark = pytest.mark.xdist_group("browser")

NORM, RATE = "Gradient Norm/mean", "Output Activations/death_rate"
LAYERS = ("conv1", "conv2", "conv3", "head")
STEPS = 30


def curve(series, place, threshold=0.5):
    return Evidence(series, place, (0, 10, 20), (0.0, 0.4, 1.0), threshold)


def finding(symptom, severity, layer, step, explanation="It is so.", **fields):
    return Finding(symptom, severity, layer, step, step + 2, explanation, Remedy(f"Repair {symptom}."), **fields)


STEP = "step_too_large:conv2.weight"
DEAD = [
    finding("step_too_large", "error", "conv2.weight", 8, "The step was 31 %.", evidence=(curve("x", "y"),)),
    finding("dead_units", "error", "conv2", 10, caused_by=STEP, evidence=(curve("death_rate", "conv2"),)),
    finding("no_progress", "warning", None, 12, caused_by="dead_units:conv2"),
    finding("bad_initial_loss", "warning", None, 0, resolved_at=6),
    finding("rank_collapse", "info", "head", 20, confidence=0.8),
]


def write(folder, findings=None, layers=LAYERS, steps=STEPS, kind="Linear"):
    """A run with a row for each layer and each weight; returns the writer."""
    writer = Writer(folder, meta={"started": 1000.0})
    weights = [f"{layer}.weight" for layer in layers]
    writer.introduce_layers([one for layer in layers for one in (Layer(layer, kind, 9), Layer(f"{layer}.weight"))])
    writer.introduce_statistics("Outputs", [Statistic(RATE, "linear", (0.0, 1.0))])
    for step in range(steps):
        writer.put(
            "Gradients", step, [[1.0 + place for place in range(len(layers))]], layers=weights, statistics=[NORM]
        )
        writer.put("Outputs", step, [[0.25] * len(layers)], layers=layers, statistics=[RATE])
        losses = {"Loss/train_loss mean": 2 / (1 + step), "Loss/val_loss mean": 3 / (1 + step), "Logged/lr mean": 0.1}
        writer.put("run", step, [[value] for value in losses.values()], layers=["run"], statistics=list(losses))
    if findings is not None:
        writer.note(findings=[one.to_json() for one in findings])
    writer.flush()
    return writer


@pytest.fixture(scope="module")
def ward(tmp_path_factory, serving):
    """The address of a page over a sick run, a healthy one, one that nobody has looked at, and one that crashed."""
    folder = tmp_path_factory.mktemp("ward")
    for name, findings in {"sick": DEAD, "healthy": [], "unknown": None}.items():
        write(folder / name, findings).close()
    write(folder / "crashed", []).close("crashed")
    with serving(folder) as client:
        yield client.url


@pytest.mark.parametrize(
    ("run", "verdict", "tone"),
    [
        ("sick", "1 problem since step 8", "error"),
        ("healthy", "healthy", "healthy"),
        ("unknown", "not diagnosed", "unknown"),
        ("crashed", "no problem found", "unknown"),
    ],
)
def test_the_bar_on_top_says_how_the_run_is(visited, ward, run, verdict, tone):
    visited.follow(f"{ward}#run={run}")
    assert visited.texts(".top .verdict") == [verdict]
    assert visited.run("return document.querySelector('.verdict').dataset.tone") == tone
    assert len(visited.texts(".finding")) == (3 if run == "sick" else 0)


def test_first_causes_have_cards_and_what_follows_from_them_is_folded(page, ward):
    page.open(f"{ward}#run=sick")
    heads = ".finding > .finding-head"
    assert page.texts(f"{heads} h3") == ["step too large", "rank collapse"]
    assert page.texts(f"{heads} .severity") == ["error", "info"]
    assert page.texts(f"{heads} .finding-layer") == ["conv2.weight", "head"]
    assert page.texts(f"{heads} .since") == ["since step 8", "since step 20"]
    first, second = (page.texts(f".finding:nth-child({place}) > .finding-body p") for place in (1, 2))
    assert first == ["The step was 31 %.", "Try: Repair step_too_large."]
    assert second == ["It is so.", "Try: Repair rank_collapse.", "80 % sure"]
    assert page.texts("summary") == ["2 consequencesdead units, no progress", "1 problem is overbad initial loss"]
    assert page.texts("details[open]") == []
    page.click("summary b", "2 consequences")
    page.click("summary b", "1 problem is over")
    page.wait(lambda: len(page.texts("details[open] .consequence")) == 3)
    assert page.texts(".consequence h3") == ["dead units", "no progress", "bad initial loss"]
    assert page.texts(".consequence .since") == ["since step 10", "since step 12", "since step 0, over since step 6"]


def test_a_cause_that_is_over_stays_on_top_of_what_it_has_left(page, tmp_path, serving):
    spike = finding("step_too_large", "info", "conv1", 2, resolved_at=4)
    write(tmp_path / "hurt", [spike, finding("dead_units", "error", "conv2", 3, caused_by=spike.id)]).close()
    with serving(tmp_path) as client:
        page.open(client.url)
        assert page.texts(".verdict") == ["1 problem since step 2"]
        assert page.texts(".finding > .finding-head .severity") == ["over"]
        assert page.run("return document.querySelector('.finding').dataset.tone") == "error"
        assert page.texts("summary") == ["1 consequencedead units"]
        page.driver.get("about:blank")


def test_a_card_shows_the_numbers_that_it_rests_on_with_their_threshold(visited, ward):
    visited.follow(f"{ward}#run=sick")
    assert visited.texts(".sparkline figcaption") == ["xlast 1 · threshold 0.5"]
    box = "const [a, b] = [...document.querySelectorAll('.sparkline svg, .sparkline .limit')].map((e) => "
    box += "e.getBoundingClientRect()); return [a.height, (b.top + b.bottom) / 2 - a.top]"
    height, limit = visited.run(box)
    assert limit == pytest.approx(height / 2, abs=2)
    assert visited.run("return document.querySelectorAll('.sparkline polyline').length") == 1


@pytest.mark.parametrize("cards", [2, 3])
def test_cards_fill_their_row_and_show_their_curves_whole(page, tmp_path, serving, window, cards):
    curves = curve("update ratio", None), curve("loss", None)
    severities = ["error", "info", "info"][:cards]
    found = [finding(f"symptom_{place}", one, None, 8, evidence=curves) for place, one in enumerate(severities)]
    write(tmp_path / "run", found).close()
    window(1400, 1000)
    boxes = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().toJSON())"
    with serving(tmp_path) as client:
        page.open(client.url)
        (whole,) = page.run(boxes, ".findings")
        ends = [box["right"] for box in page.run(boxes, ".finding")]
        lowest = max(box["bottom"] for box in page.run(boxes, ".finding"))
        figures = page.run(boxes, ".finding:last-child .sparkline")
        page.driver.get("about:blank")
    assert ends[0] == ends[-1]
    assert lowest <= whole["bottom"]
    assert (len(figures), figures[0]["top"] == figures[1]["top"]) == (2, cards == 3)  # a narrow card has them in a row


def test_a_layer_whose_name_is_a_number_is_called_a_layer(page, tmp_path, serving):
    write(tmp_path / "run", [finding("no_update", "warning", "0", 3)], layers=("0", "2")).close()
    with serving(tmp_path) as client:
        page.open(client.url)
        assert page.texts(".finding-layer") == ["layer 0"]
        page.driver.get("about:blank")


def test_a_logged_loss_that_repeats_the_loss_has_no_chart_of_its_own(page, tmp_path, serving):
    names = ["Loss/train_loss mean", "Logged/train_loss mean", "Logged/smooth_loss mean"]
    with Writer(tmp_path / "run", meta={"started": 1000.0}) as writer:
        for step in range(5):
            loss = 1 / (1 + step)
            writer.put("run", step, [[loss], [loss], [loss / 2]], layers=["run"], statistics=names)
    with serving(tmp_path) as client:
        page.open(client.url)
        assert page.texts(".strip h3") == ["Loss", "smooth loss"]
        page.driver.get("about:blank")


def chosen(page):
    script = "return document.querySelector('.label.is-selected')?.title"
    return page.run(script), page.texts(".layer-name"), page.run("return document.querySelector('.statistic').value")


def test_show_moves_the_heat_map_and_the_curves_to_the_finding(page, ward):
    page.open(f"{ward}#run=sick&search=head&first=20&last=29&closed=conv2")
    page.click("summary b", "2 consequences")
    page.click(".consequence .show")
    assert chosen(page) == ("conv2", ["conv2"], f'["Outputs","{RATE}"]')
    address = page.driver.current_url
    assert "at=10" in address
    assert not any(field in address for field in ("search=", "first=", "last=", "closed="))
    assert not page.run("return document.querySelector('.cursor-line').hidden")
    page.click(".finding > .finding-head .show")
    assert chosen(page) == ("conv2.weight", ["conv2.weight"], f'["Gradients","{NORM}"]')
    assert "at=8" in page.driver.current_url


def test_show_of_a_part_of_the_model_leads_to_its_first_layer(page, tmp_path, serving):
    found = [finding("dead_units", "error", place, 5) for place in ("block", "gone")]
    write(tmp_path / "sick", found, layers=["conv", "block.0", "block.1"]).close()
    with serving(tmp_path) as client:
        page.open(client.url)
        page.click(".show")
        assert page.texts(".layer-name") == ["block.0"]
        page.run("[...document.querySelectorAll('.show')][1].click()")
        page.settle()
        assert page.texts(".layer .empty") == ['This run has no layer "gone".']
        assert len(page.texts(".worst-layer")) == 3
        page.driver.get("about:blank")


def test_no_row_is_framed_while_no_layer_is_chosen(page, tmp_path, serving):
    write(tmp_path / "grouped", layers=["block.0.a", "block.0.b", "block.0.c"]).close()
    with serving(tmp_path) as client:
        page.open(f"{client.url}#theme=dark&lens=Outputs&statistic=Output%20Activations%2Fdeath_rate")
        corner = "const c = document.querySelector('.heat-canvas'), label = document.querySelector('.label.is-group');"
        corner += " const data = c.getContext('2d').getImageData(0, 0, 1, label.offsetHeight).data;"
        corner += " return [...data].filter((_, index) => index % 4 === 3)"
        assert set(page.run(corner)) == {0}
        page.driver.get("about:blank")


def test_show_of_a_finding_about_the_whole_run_points_at_its_step(page, ward):
    page.open(f"{ward}#run=sick&layer=head")
    page.click("summary b", "2 consequences")
    page.run("[...document.querySelectorAll('.consequence .show')][1].click()")
    page.settle()
    assert "at=12" in page.driver.current_url
    assert page.texts(".layer-name") == ["head"]
    assert page.texts(".large-charts .value b") == ["0.1538", "0.2308"]  # the losses at that step


def test_findings_can_be_put_away_and_stay_away(page, ward):
    page.open(f"{ward}#run=sick")
    page.click(".verdict")
    assert page.texts(".finding") == []
    page.open(page.driver.current_url)
    assert page.texts(".finding") == []
    page.keys("v")
    assert len(page.texts(".finding")) == 3


def test_until_a_layer_is_chosen_the_worst_ones_are_listed(page, ward):
    page.open(f"{ward}#run=sick")
    assert page.texts(".worst h2") == ["Worst layers"]
    assert page.texts(".worst-layer .mono") == ["conv2.weight", "head.weight", "conv3.weight", "conv1.weight"]
    assert page.texts(".worst-reason") == ["step too large since step 8; dead units since step 10"]
    page.click(".worst-layer")
    assert page.texts(".layer-name") == ["conv2.weight"]
    assert page.texts(".worst h2") == []
    page.keys("\ue00c")
    assert page.texts(".worst h2") == ["Worst layers"]
    page.open(f"{ward}#run=healthy")
    assert page.texts(".worst h2") == ["Largest numbers; nothing stands out"]
    assert len(page.texts(".worst-layer")) == 4


def test_a_list_of_the_worst_that_is_cut_says_of_how_many_layers(page, tall):
    page.open(f"{tall}#")
    assert (page.texts(".worst h2 span"), len(page.texts(".worst-layer"))) == (["15 of 1,000"], 15)
    page.open(f"{tall}#search=blocks.38.part1")
    listed = len(page.texts(".worst-layer"))
    assert page.texts(".worst h2 span") == [f"{listed} of 11"]
    page.open(f"{tall}#search=blocks.3.part1")
    assert page.texts(".worst .empty") == ["No layer that matches the filter is among the worst."]


def test_rows_and_table_have_the_order_of_the_server(visited, ward, tmp_path):
    write(tmp_path / "sick", DEAD).close()
    with open_run(tmp_path / "sick") as run:
        ranked = [layer for layer in api.health(run)["layers"] if layer.endswith(".weight")]
    assert ranked == ["conv2.weight", "head.weight", "conv3.weight", "conv1.weight"]
    visited.follow(f"{ward}#run=sick&sort=worst&tab=table")
    assert visited.rows() == ranked
    assert visited.texts(".table-tab th .link") == ranked
    tones = "return [...document.querySelectorAll('.gutter .dot')].map((e) => [e.parentNode.title, e.dataset.tone])"
    assert visited.run(tones) == [["conv2.weight", "error"]]


def test_losses_are_larger_than_everything_else(visited, ward):
    visited.follow(f"{ward}#run=sick")
    assert visited.texts(".large-charts h3") == ["Loss"]
    assert visited.texts(".small-charts h3") == ["lr"]
    assert visited.texts(".large-charts .value bdi") == ["train loss", "val loss"]
    size = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.height, box.width]"
    (height, width), (_, other) = visited.run(size, ".large-charts .chart"), visited.run(size, ".small-charts .chart")
    assert height >= 200
    assert width >= other > 0


@pytest.mark.parametrize("widths", [(360, 1440), slow((390, 768, 2560))], ids=str)
def test_the_verdict_comes_first_and_fits_every_window(page, tmp_path, serving, window, widths):
    place = "transformer.encoder.layers.11.self_attention." + "projection" * 6
    words = finding("dead_units", "error", place, 3, "A reason that is " + "long " * 40 + "x" * 90)
    follows = finding("no_update", "warning", place, 4, caused_by=words.id, evidence=(curve("y" * 50, place),))
    write(tmp_path / "wordy", [words, follows, *DEAD], layers=[*LAYERS, place]).close()
    size = "const e = document.documentElement; return [e.scrollWidth, visualViewport.scale]"
    inside = "const inner = [...document.querySelectorAll('.findings *')]; const panel ="
    inside += " document.querySelector('.findings').getBoundingClientRect(); return inner.filter((e) =>"
    inside += " e.getBoundingClientRect().right > panel.right + 1).map((e) => e.className)"
    tops = "return ['.top', '.findings', '.large-charts', '.heat-panel'].map((name) =>"
    tops += " document.querySelector(name).getBoundingClientRect().top)"
    with serving(tmp_path) as client:
        for width in widths:
            window(width)
            page.open(client.url)
            for summary in page.texts("summary b"):
                page.click("summary b", summary)
            assert page.run(size) == [width, 1]
            assert page.run(inside) == []
            assert page.run(tops) == sorted(page.run(tops))
        page.driver.get("about:blank")


def test_a_finding_that_comes_or_ends_while_the_run_trains_shows_by_itself(page, tmp_path, serving):
    writer = write(tmp_path / "live", [])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=live")
        assert page.texts(".verdict") == ["healthy"]
        found = finding("dead_units", "warning", "conv2", 10)
        writer.note(findings=[found.to_json()])
        writer.flush()
        page.wait(lambda: page.texts(".verdict") == ["1 problem since step 10"])
        assert page.texts(".finding h3") == ["dead units"]
        writer.note(findings=[finding("dead_units", "warning", "conv2", 10, resolved_at=20).to_json()])
        writer.flush()
        page.wait(lambda: page.texts(".verdict") == ["healthy"])
        assert page.texts("summary") == ["1 problem is overdead units"]
        writer.close()
        page.driver.get("about:blank")


HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_a_report_opens_with_the_same(page, tmp_path):
    bad = finding(HOSTILE, "error", "conv2", 5, HOSTILE, evidence=(curve(HOSTILE, HOSTILE),))
    write(tmp_path / "sick", [bad, *DEAD]).close()
    page.open(report_html(tmp_path / "sick").save(tmp_path / "report.html").as_uri())
    assert page.texts(".verdict") == ["2 problems since step 5"]
    assert page.texts(".finding > .finding-head h3") == [HOSTILE, "step too large", "rank collapse"]
    assert page.texts(".finding p")[0] == HOSTILE
    assert page.texts(".worst-layer .mono")[0] == "conv2.weight"
    assert page.run("return document.querySelectorAll('#page img, #page script').length") == 0
    page.click(".finding .show")
    assert page.texts(".layer-name") == ["conv2"]


@pytest.fixture(scope="module")
def tall(tmp_path_factory, serving):
    """The address of a page over a run with a thousand layers, one of which is in trouble."""
    folder = tmp_path_factory.mktemp("tall")
    layers = [f"blocks.{index // 20}.part{index % 20}" for index in range(1000)]
    write(folder / "tall", [finding("nonfinite", "error", layers[777], 2)], layers, steps=3).close()
    with serving(folder) as client:
        yield client.url


def test_the_worst_of_a_thousand_layers_can_be_read_and_the_others_are_folded(page, tall):
    page.open(f"{tall}#sort=worst")
    assert page.rows()[0] == "blocks.38.part17.weight"
    assert min(page.run("return [...document.querySelectorAll('.label')].map((e) => e.offsetHeight)")) >= 16
    page.redraw(lambda: page.run("document.querySelector('.view').scrollTop = 1e6"))
    groups = "return [...document.querySelectorAll('.label.is-group')].map((e) => [e.title, e.ariaExpanded])"
    assert page.run(groups)[-1] == ["blocks.47", "false"]


def test_a_thousand_layers_fit_into_the_window_and_a_group_shows_its_worst_child(page, tall):
    page.open(f"{tall}#")
    sizes = "const e = document.querySelector('.view'); return e.scrollHeight - e.clientHeight"
    assert page.run(sizes) <= 1
    marked = "return [...document.querySelectorAll('.gutter .dot')].map((e) => [e.parentNode.title, e.dataset.tone])"
    assert page.run(marked) == [["blocks.38", "error"]]
    page.click(".show")
    assert chosen(page)[0] == "blocks.38.part17"


def test_a_rail_marks_trouble_that_is_out_of_sight(page, tall):
    page.open(f"{tall}#rows=read")
    assert "blocks.38.part17.weight" not in page.rows()
    assert page.run("return [...document.querySelectorAll('.rail button')].map((e) => [e.title, e.dataset.tone])") == [
        ["blocks.38.part17.weight", "error"]
    ]
    page.redraw(lambda: page.run("document.querySelector('.rail button').click()"))
    assert "blocks.38.part17.weight" in page.rows()


@pytest.mark.parametrize(
    ("tab", "focused"),
    [("layer", ".show"), ("layer", "summary"), ("layer", ".worst-layer"), ("table", ".table-tab .link")],
)
def test_new_numbers_leave_the_focus_where_it_is(page, tmp_path, serving, tab, focused):
    writer = write(tmp_path / "live", DEAD)
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=live&tab={tab}")
        page.run("document.querySelector(arguments[0]).focus()", focused)
        worse = [finding("step_too_large", "error", "conv2.weight", 8, "It was 77 %."), *DEAD[1:]]
        writer.put("Gradients", STEPS, [[9.0, 9, 9, 9]], layers=[f"{one}.weight" for one in LAYERS], statistics=[NORM])
        writer.note(findings=[one.to_json() for one in worse])
        writer.flush()
        page.wait(lambda: page.drawn_step() == STEPS and "It was 77 %." in page.texts(".finding-text p"))
        assert page.run("return document.activeElement.matches(arguments[0])", focused)
        writer.close()
        page.driver.get("about:blank")


def test_the_keys_go_through_layers_whose_groups_are_closed_because_there_are_so_many(page, tall):
    page.open(f"{tall}#")
    assert page.rows() == []
    opened = []
    for key in ("j", "j", "j", "k"):
        page.keys(key)
        page.wait(lambda: page.texts(".layer-name"))
        opened += page.texts(".layer-name")
    assert opened == [f"blocks.0.part{place}.weight" for place in (0, 1, 2, 1)]
    assert page.run("return document.querySelectorAll('.selected-row').length") == 1  # beside their group
    page.follow(f"{tall}#closed=blocks.0&layer=blocks.0.part5.weight")
    page.keys("j")
    page.wait(lambda: page.texts(".layer-name") == ["blocks.1.part0.weight"])  # somebody has closed that group
