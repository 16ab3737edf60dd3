"""What can be chosen on the page, in a real browser."""

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.xdist_group("browser")

RATE = "lens=Rates&statistic=Rate%2Fvalue"


def test_a_filter_applies_to_rows_table_and_alerts(page, site):
    page.open(f"{site}#run=broken&{RATE}&tab=table")
    search = page.driver.find_element(By.CSS_SELECTOR, ".search")
    search.send_keys(r"block\.\d\.fc$")
    page.wait(lambda: page.rows() == ["block.0.fc", "block.1.fc"])
    assert page.texts(".table-tab tbody th") == ["block.0.fc", "block.1.fc"]
    page.click("[role=tab]", "Alerts1")
    assert page.texts(".alert bdi") == ["block.0.fc"]
    search.send_keys(Keys.BACKSPACE * 20 + "head")
    page.wait(lambda: page.texts(".alert bdi") == [])


def test_an_alert_shows_its_text_and_each_of_its_numbers(page, tmp_path, new_run, serving):
    writer = new_run(tmp_path / "told")
    numbers = {"norm": 812345.678, "median": 0.25, "samples_seen": 1512, "rate": float("nan")}
    body = {"lens": "Norms", "text": "far <i>above</i> the median", "numbers": numbers}
    writer.event(7, "spike", "warning", layer="head", body=body)
    writer.event(9, "odd", body={"text": 5, "numbers": "none"})
    writer.close()
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=told&{RATE}&tab=alerts")
        assert page.texts(".alert-text") == ["far <i>above</i> the median", "5"]
        facts = dict(zip(page.texts(".alert dt"), page.texts(".alert dd"), strict=True))
        assert facts == {
            "lens": "Norms",
            "norm": "8.12e5",
            "median": "0.25",
            "samples seen": "1,512",
            "rate": "NaN",
        }
        page.driver.get("about:blank")


def test_an_alert_leads_to_its_layer_and_step(visited, site):
    visited.follow(f"{site}#run=broken&{RATE}&tab=alerts")
    visited.click(".alert")
    assert visited.texts(".layer-name") == ["block.0.fc"]
    assert "at=24" in visited.driver.current_url


def test_groups_close_and_pins_stay_on_top(visited, site):
    visited.follow(f"{site}#run=first&{RATE}&rows=read")
    visited.click(".label.is-group .name", "block")
    assert visited.rows() == ["conv", "head"]
    visited.click(".label[title=head] .pin")
    assert visited.rows() == ["head", "conv"]
    assert "pins=head" in visited.driver.current_url
    assert "closed=block" in visited.driver.current_url


def test_another_run_is_overlaid_subtracted_and_its_settings_compared(visited, site, sample):
    visited.follow(f"{site}#run=first&{RATE}&tab=runs&layer=conv&theme=light")
    visited.click("input[aria-label='Compare with second']")
    assert visited.texts(".chip bdi") == ["first", "second"]
    assert visited.texts(".is-different thead th") == ["", "first", "second"]
    assert visited.texts(".is-different tbody tr > *")[:3] == ["lr", "0.1", "0.35"]
    visited.click("[role=tab]", "Alerts")
    visited.click("button.toggle", "Difference")
    assert visited.texts(".legend .muted") == ["second − first"]
    low, high = (float(text.replace("−", "-")) for text in visited.texts(".legend > span")[:2])
    assert (low, high) == (-0.75, 0.75)  # 0.25 more, or 0.75 less where that passes 1
    tick = 4
    signs = [sample.rate(index, tick, 0.25) - sample.rate(index, tick) > 0 for index in range(5)]
    colours = [visited.cell(layer, (tick + 0.5) / 24) for layer in sample.layers]
    assert [colour[0] > colour[2] for colour in colours] == signs  # more is orange, less is blue
    visited.click("[role=tab]", "Layer")
    assert visited.run("return document.querySelectorAll('.charts .value .dot').length") == 4


def test_smoothing_keeps_the_numbers_faintly_behind(visited, site):
    visited.follow(f"{site}#run=first&{RATE}&layer=conv&smooth=0.9")
    assert visited.texts(".charts h3") == ["Rate", "Norm"]
    assert visited.texts(".charts .value b")[0] == "0.3833"  # the newest number, not the smoothed one
    inked = visited.run(
        "const c = document.querySelector('.charts canvas'), copy = document.createElement('canvas');"
        "[copy.width, copy.height] = [c.width, c.height];"
        "const context = copy.getContext('2d', { willReadFrequently: true }); context.drawImage(c, 0, 0);"
        "const d = context.getImageData(0, 0, c.width, c.height).data, alphas = new Set();"
        "for (let i = 3; i < d.length; i += 4) if (d[i - 3] < 60 && d[i - 2] > 90) alphas.add(d[i]);"
        "return [...alphas]"
    )
    assert 255 in inked
    assert any(60 < alpha < 120 for alpha in inked)


def test_the_axis_is_chosen_for_all_panels(page, site):
    for axis in ("step", "epoch", "time"):
        page.follow(f"{site}#run=first&{RATE}&layer=conv&x={axis}")
        assert page.run("return document.querySelector('.choice [aria-checked=true]').dataset.value") == axis
        for selector in (".brand", ".heat-canvas"):
            place = page.driver.find_element(By.CSS_SELECTOR, selector)
            page.mouse(ActionChains(page.driver).move_to_element(place))
        assert page.texts(".tip .muted")[0].startswith(axis)
        assert (":" in page.texts(".tip .muted")[0]) == (axis == "time")


@pytest.mark.parametrize(("theme", "is_dark"), [("light", False), ("dark", True)])
def test_themes(visited, site, theme, is_dark):
    visited.follow(f"{site}#run=first&{RATE}&theme={theme}")
    colour = visited.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(colour) < 40) == is_dark


def test_the_theme_of_the_system_is_followed(page, site):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.open(f"{site}#run=first&{RATE}")
    assert page.run("return getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_link_shows_what_its_sender_saw(page, site):
    page.open(f"{site}#run=first&{RATE}")
    page.keys("j", "j", "s", "p", "4", "x")
    assert "x=epoch" in page.driver.current_url
    link, rows = page.driver.current_url, page.rows()
    page.open(link)
    assert page.rows() == rows
    assert page.texts("[role=tab][aria-selected=true]") == ["Table"]
    assert page.run("return document.querySelector('.choice [aria-checked=true]').dataset.value") == "epoch"


def test_keys_are_listed_and_work(page, site):
    page.open(f"{site}#run=first&{RATE}")
    page.keys("?")
    assert page.run("return document.querySelector('dialog').open")
    assert "copy a link to this view" in page.texts(".help td")
    page.keys(Keys.ESCAPE)
    assert not page.run("return document.querySelector('dialog').open")
    page.keys("/")
    assert page.run("return document.activeElement.className") == "search"


def test_escape_clears_a_filter_and_leaves_it(page, site):
    page.open(f"{site}#run=first&{RATE}")
    for tab, selector in (("1", ".heat-bar .search"), ("3", ".run-bar .search")):
        page.keys(tab, "/")
        search = page.driver.find_element(By.CSS_SELECTOR, selector)
        search.send_keys("first")
        page.wait(lambda: "=first" in page.driver.current_url.replace("run=first", ""))
        search.send_keys(Keys.ESCAPE)
        page.wait(lambda: "=first" not in page.driver.current_url.replace("run=first", ""))
        assert search.get_attribute("value") == ""
        assert page.driver.switch_to.active_element != search


def test_letters_typed_in_a_list_that_was_reached_by_keyboard_choose_from_it(page, site):
    page.open(f"{site}#run=first&{RATE}&layer=conv")
    runs = page.driver.find_element(By.CSS_SELECTOR, "select[aria-label=Run]")
    page.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    page.run("arguments[0].focus()", runs)
    assert page.run("return arguments[0].matches(':focus-visible')", runs)
    ActionChains(page.driver).send_keys("s").perform()
    page.wait(lambda: "run=second" in page.driver.current_url)
    assert "sort=" not in page.driver.current_url
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    assert page.run("return document.activeElement.tagName") == "BODY"
    assert "layer=conv" in page.driver.current_url
    page.keys("4")
    assert page.texts("[role=tab][aria-selected=true]") == ["Table"]


def test_the_table_has_the_numbers(visited, site, sample):
    visited.follow(f"{site}#run=first&{RATE}&tab=table")
    assert len(visited.texts(".table-tab tbody th")) == 5
    cells = visited.run(
        "return [...document.querySelector('.table-tab tbody tr').children].slice(1, 5).map(c => Number(c.textContent))"
    )
    numbers = np.array([sample.rate(0, step) for step in range(24)])
    assert cells == pytest.approx([numbers[-1], numbers.min(), numbers.mean(), numbers.max()], abs=6e-5)


CAPTURE = """
window.saved = [];
URL.createObjectURL = (blob) => { window.saved.push(blob); return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { window.savedName = this.download; };
"""


def saved(page, panel, kind):
    """Press a panel's button that saves it as PNG or CSV, and give the file's name and beginning."""
    page.run(CAPTURE)
    page.click(f"{panel} .save button", kind)
    page.wait(lambda: page.run("return window.saved.length") == 1)
    text = "window.saved[0].slice(0, 400).text().then(arguments[0])"
    return page.run("return window.savedName"), page.driver.execute_async_script(text)


def test_the_heat_map_is_saved_as_numbers_and_as_a_picture(page, site, sample):
    page.open(f"{site}#run=first&{RATE}")
    name, text = saved(page, ".heat-bar", "CSV")
    head, first = text.splitlines()[:2]
    assert name == "first_Rate.csv"
    assert head.split(",")[:3] == ["layer", "0", "1"]
    assert first.startswith("conv,0,")
    assert float(first.split(",")[2]) == pytest.approx(sample.rate(0, 1))
    name, text = saved(page, ".heat-bar", "PNG")
    assert name == "first_Rate.png"
    assert text[1:4] == "PNG"


def test_a_chart_is_saved_as_numbers_and_as_a_picture(page, site, sample):
    page.open(f"{site}#run=first&{RATE}&layer=conv&x=epoch")
    assert page.texts(".charts h3") == ["Rate", "Norm"]
    name, text = saved(page, ".charts", "CSV")
    assert name == "first_conv_Rate.csv"
    assert text.splitlines()[0] == "epoch,first low,first high,first"
    assert [float(part) for part in text.splitlines()[2].split(",")] == pytest.approx([1 / 6, *[sample.rate(0, 1)] * 3])
    name, text = saved(page, ".charts", "PNG")
    assert (name, text[1:4]) == ("first_conv_Rate.png", "PNG")


NO_EXPRESSION = "The filter is not a regular expression, and no name contains this text."


def test_a_filter_that_is_no_expression_or_matches_nothing_says_so_and_can_be_mended(page, site):
    page.open(f"{site}#run=first&{RATE}")
    search = page.driver.find_element(By.CSS_SELECTOR, ".search")
    search.send_keys("block\\")
    page.wait(lambda: page.texts(".heat > .empty") == [NO_EXPRESSION])
    described = "const [e] = arguments; return [e.ariaInvalid, e.getAttribute('aria-describedby')]"
    invalid, message = page.run(described, search)
    assert invalid == "true"
    assert page.run("return document.getElementById(arguments[0]).textContent", message) == NO_EXPRESSION
    search.send_keys(".0")
    page.wait(lambda: page.rows() == ["block.0.fc", "block.0.norm"])
    assert page.run(described, search) == ["false", None]
    assert page.texts(".heat > .empty") == []
    search.send_keys("x")
    page.wait(lambda: page.texts(".heat > .empty") == ["No layer matches the filter."])


def test_what_is_chosen_while_an_answer_is_awaited_is_not_lost(page, site):
    page.open(f"{site}#run=first&{RATE}&tab=runs")
    page.run(
        "const ask = window.fetch, held = new Promise((free) => { window.free = free; });"
        "window.fetch = async (address) => {"
        "  if (address.includes('api/head')) { window.isHeld = true; await held; }"
        "  return ask(address); }"
    )
    page.driver.find_element(By.TAG_NAME, "body").send_keys("x")
    page.until(lambda: page.run("return window.isHeld"))
    page.run("document.querySelector(`input[aria-label='Compare with second']`).click()")
    assert page.drawn() is None  # the answer is still awaited
    page.run("window.free()")
    page.settle()
    assert page.texts(".chip bdi") == ["first", "second"]
    assert "x=epoch" in page.driver.current_url
