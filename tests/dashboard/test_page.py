"""The page in a real browser, over a real server."""

from itertools import product

import matplotlib as mpl
import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from monitorch.store import Layer, Writer

pytestmark = pytest.mark.xdist_group("browser")

RATE = "lens=Rates&statistic=Rate%2Fvalue"
NONFINITE = (240, 36, 92)
HOSTILE = ("<script>alert(1)</script>", "\"quotes' & <b>bold</b>", "שכבה.ראשונה", "层.🔥")


def middle(tick, ticks=24):
    """How far from left to right the column of a tick is."""
    return (tick + 0.5) / ticks


def close_to(colour, wanted, tolerance):
    return np.abs(np.array(colour[:3]) - np.array(wanted)).max() <= tolerance


def test_a_cell_has_the_colour_of_its_number(visited, site, sample):
    visited.follow(f"{site}#run=first&{RATE}&theme=light")
    for tick, (index, layer) in product((0, 7, 23), enumerate(sample.layers)):
        if sample.rate(index, tick) == 0:
            continue  # zero has no place on the scale
        wanted = 255 * np.array(mpl.colormaps["viridis"](sample.rate(index, tick))[:3])
        assert close_to(visited.cell(layer, middle(tick)), wanted, 10)


def test_colours_of_cividis_are_those_that_everybody_knows(visited, site, sample):
    visited.follow(f"{site}#run=first&{RATE}&map=cividis&theme=light")
    wanted = 255 * np.array(mpl.colormaps["cividis"](sample.rate(3, 12))[:3])
    assert close_to(visited.cell("block.1.fc", middle(12)), wanted, 10)


def test_numbers_over_decades_have_logarithmic_colours(visited, site):
    visited.follow(f"{site}#run=first&lens=Norms&statistic=Norm%2Fmean")
    assert visited.texts(".legend .muted") == ["log"]
    visited.click(".legend [data-value=linear]")
    assert visited.texts(".legend .muted") == ["linear"]


def test_what_is_not_finite_has_a_colour_of_its_own(visited, site):
    visited.follow(f"{site}#run=broken&{RATE}&theme=light")
    for layer in ("block.0.fc", "block.0.norm", "block.1.fc"):
        assert close_to(visited.cell(layer, 0.999), NONFINITE, 0)
    assert not close_to(visited.cell("head", 0.999), NONFINITE, 60)


def test_what_was_not_finite_comes_first_among_the_worst(visited, site):
    visited.follow(f"{site}#run=broken&{RATE}&sort=worst")
    assert set(visited.rows()[:3]) == {"block.0.fc", "block.0.norm", "block.1.fc"}


def test_a_click_on_a_row_opens_its_layer(page, site):
    page.open(f"{site}#run=first&{RATE}")
    canvas = page.driver.find_element(By.CSS_SELECTOR, ".heat-canvas")
    label = page.driver.find_element(By.CSS_SELECTOR, ".label[title='block.1.fc']")
    middle_of_row = label.rect["y"] + label.rect["height"] / 2 - canvas.rect["y"] - canvas.rect["height"] / 2
    page.mouse(ActionChains(page.driver).move_to_element_with_offset(canvas, 40, int(middle_of_row)).click())
    assert page.texts(".layer-name") == ["block.1.fc"]
    assert page.texts(".charts h3") == ["Rate", "Norm"]
    assert "layer=block.1.fc" in page.driver.current_url


def test_dragging_zooms_and_a_double_click_resets(page, site):
    page.open(f"{site}#run=first&{RATE}")
    canvas = page.driver.find_element(By.CSS_SELECTOR, ".heat-canvas")
    begin, end = (int(canvas.rect["width"] * (middle(tick) - 0.5)) for tick in (6, 18))
    drag = ActionChains(page.driver).move_to_element_with_offset(canvas, begin, 5).click_and_hold()
    page.mouse(drag.move_by_offset(end - begin, 0).release())
    assert page.drawn_step() == 18
    assert "first=6" in page.driver.current_url
    assert "last=18" in page.driver.current_url
    page.mouse(ActionChains(page.driver).double_click(canvas))
    assert page.drawn_step() == 23


def test_a_commit_shows_by_itself(page, tmp_path, new_run, serving, sample):
    writer = new_run(tmp_path / "live")
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=live&{RATE}")
        assert page.texts(".status") == ["running"]
        sample.fill(writer, range(24, 30))
        writer.event(29, "dead_neurons", "warning", layer="conv")
        writer.flush()
        page.wait(lambda: page.drawn_step() == 29)
        assert page.texts(".count") == ["1"]
        writer.close()
        page.wait(lambda: page.texts(".status") == ["finished"])
        page.driver.get("about:blank")


def test_the_page_tells_what_observing_costs_and_where_it_may_be_more(page, tmp_path, make_run, serving):
    costs = {
        "unknown": ({}, []),
        "known": ({"overhead": 0.0312, "overhead_at_least": False}, ["3.1 % overhead"]),
        "more": ({"overhead": 0.35, "overhead_at_least": True}, ["at least 35.0 % overhead"]),
    }
    for name, (facts, _) in costs.items():
        make_run(tmp_path / name, **facts)
    with serving(tmp_path) as client:
        for name, (_, shown) in costs.items():
            page.follow(f"{client.url}#run={name}&{RATE}")
            (text,) = page.texts(".badge .facts")
            assert [fact for fact in text.split(" · ") if not fact.endswith(" ago")] == ["step 23", *shown]
        page.driver.get("about:blank")


def test_while_paused_nothing_moves(page, tmp_path, new_run, serving, sample):
    writer = new_run(tmp_path / "live")
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=live&{RATE}")
        page.click(".badge .icon-button")
        assert page.texts(".status") == ["paused"]
        listen = "const s = new EventSource('api/live?run=live'); s.onopen = () => { window.heard = 0; }; "
        page.run(listen + "s.onmessage = () => { window.heard += 1; s.close(); }")
        page.wait(lambda: page.run("return window.heard") == 0)
        sample.fill(writer, range(24, 26))
        writer.flush()
        page.wait(lambda: page.run("return window.heard") == 1)
        assert page.drawn_step() == 23
        page.click(".badge .icon-button")
        page.wait(lambda: page.drawn_step() == 25)
        writer.close()
        page.driver.get("about:blank")


def test_the_cursor_is_in_all_panels(page, site, sample):
    page.open(f"{site}#run=first&{RATE}&layer=head&at=6")
    assert page.texts(".charts h3") == ["Rate", "Norm"]
    assert page.texts(".charts .value b") == [f"{sample.rate(4, 6):.4g}", f"{100 * (1 + 6 / 10):.4g}"]
    canvas = page.driver.find_element(By.CSS_SELECTOR, ".heat-canvas")
    place = int(canvas.rect["width"] * (middle(12) - 0.5))
    page.mouse(ActionChains(page.driver).move_to_element_with_offset(canvas, place, 0))
    assert page.texts(".charts .value b") == [f"{sample.rate(4, 12):.4g}", f"{100 * (1 + 12 / 10):.4g}"]
    assert not page.run("return document.querySelector('.cursor-line').hidden")


def test_names_are_text_and_nothing_else(page, tmp_path, new_run, serving):
    writer = new_run(
        tmp_path / "<img src=x onerror=alert(1)>", layers=HOSTILE, note="</script><script>alert(2)</script>"
    )
    writer.event(3, "<i>kind</i>", "error", layer=HOSTILE[0], body={"<b>reason</b>": "<u>text</u>"})
    writer.close()
    with serving(tmp_path) as client:
        page.open(f"{client.url}#{RATE}&layer=%3Cscript%3Ealert(1)%3C%2Fscript%3E")
        assert page.texts(".layer-name") == [HOSTILE[0]]
        assert set(page.rows()) == set(HOSTILE)
        for tab in ("Alerts1", "Runs", "Table"):
            page.click("[role=tab]", tab)
            assert page.texts("[role=tab][aria-selected=true]") == [tab]
        assert (
            page.run("return document.querySelectorAll('#page script, #page img, #page b b, #page u, .alert i').length")
            == 0
        )
        page.driver.get("about:blank")


def test_a_thousand_layers_are_a_few_labels(page, tmp_path, make_run, serving):
    make_run(tmp_path / "deep", steps=3, layers=[f"blocks.{index // 10}.part{index % 10}" for index in range(1000)])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#{RATE}&rows=read")
        assert 5 < len(page.rows()) < 100
        page.redraw(lambda: page.run("document.querySelector('.view').scrollTop = 1e6"))
        assert page.rows()[-1] == "blocks.99.part9"
        page.driver.get("about:blank")


def test_rows_too_thin_for_groups_have_whole_names(page, tmp_path, make_run, serving):
    layers = [f"blocks.{index // 6}.part{index % 6}.weight" for index in range(24)]
    make_run(tmp_path / "first", steps=3, layers=layers)
    with serving(tmp_path) as client:
        page.open(f"{client.url}#{RATE}&layer={layers[7]}")
        assert page.texts(".label .name") == layers
        assert page.texts(".label.is-selected .name") == [layers[7]]
        assert page.texts(".label.is-selected .name .muted") == ["blocks.1."]
        page.driver.get("about:blank")


def test_a_folder_without_runs_waits_for_the_first(page, tmp_path, new_run, serving):
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as client:
        page.open(client.url)
        assert page.texts(".runs-message") == ["No runs yet. This page shows the first one as soon as it begins."]
        writer = new_run(tmp_path / "runs/first")
        page.wait(lambda: page.drawn_step() == 23)
        writer.close()
        page.driver.get("about:blank")


def test_a_server_that_ends_is_noticed(page, tmp_path, new_run, serving):
    writer = new_run(tmp_path / "live")
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=live&{RATE}")
        writer.close()
    page.wait(lambda: page.texts(".notice") and "The server does not answer" in page.texts(".notice")[0])
    page.driver.get("about:blank")
    assert all("ERR_CONNECTION_REFUSED" in line or "ERR_INCOMPLETE" in line for line in page.complaints())


def test_a_module_is_shown_together_with_its_parameters(page, tmp_path, serving):
    with Writer(tmp_path / "first") as writer:
        writer.introduce_layers(
            [Layer("fc", "Linear", 12), Layer("fc.weight"), Layer("fc.bias"), Layer("fcx", "Linear")]
        )
        for step in range(5):
            writer.put("Outputs", step, [[3.0, 9.0]], layers=["fc", "fcx"], statistics=["Output Norm/mean"])
            parameters = ["fc.weight", "fc.bias"]
            writer.put("Parameters", step, [[1.0, 2.0]], layers=parameters, statistics=["Parameter Norm/mean"])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#layer=fc.bias&lens=Parameters&statistic=Parameter%20Norm%2Fmean")
        assert page.texts(".charts h3") == ["Parameter Norm", "Output Norm"]
        assert page.texts(".charts .value") == ["bias2", "weight1", "3"]
        assert page.texts(".layer-head .muted") == ["bias of Linear with 12 parameters"]
        page.open(f"{client.url}#layer=fc&lens=Parameters&statistic=Parameter%20Norm%2Fmean")
        assert page.texts(".layer-head .muted") == ["Linear · 12 parameters"]
        assert page.run("return document.querySelector('.label.is-selected').title") == "fc.weight"
        page.driver.get("about:blank")


def test_charts_of_the_whole_run_are_never_cut_off(page, tmp_path, serving, sample):
    for charts in (2, 6, 9):
        tags = [f"Tag {number}" for number in range(charts)]
        statistics = [f"{tag}/{line} mean" for tag in tags for line in ("training", "validation", "baseline")]
        with Writer(tmp_path / str(charts)) as writer:
            for step in range(5):
                writer.put("run", step, [[1.0 + step]] * len(statistics), layers=["run"], statistics=statistics)
            sample.fill(writer, range(5))
    outside = (
        "const strip = document.querySelector('.strip'), outside = []; if (strip.scrollWidth > strip.clientWidth)"
        "  outside.push('strip');"
        "for (const canvas of strip.querySelectorAll('canvas')) {"
        "  const [box, card] = [canvas, canvas.closest('.chart')].map((e) => e.getBoundingClientRect());"
        "  if (box.bottom > card.bottom || box.right > card.right || box.height < 60) outside.push(box.toJSON());"
        "} return outside"
    )
    with serving(tmp_path) as client:
        for charts in (2, 6, 9):
            page.follow(f"{client.url}#run={charts}&{RATE}")
            assert len(page.texts(".strip h3")) == charts + 1
            assert page.run(outside) == []
        page.driver.get("about:blank")
