"""All runs in one table, and finding one's way between them; in a real browser."""

import math

import pytest
from selenium.webdriver.common.by import By

from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Writer

pytestmark = pytest.mark.xdist_group("browser")

RATE = "lens=Rates&statistic=Rate%2Fvalue"
LONG = "a_rather_long_name_of_a_run_that_says_what_was_tried_and_when_2026-11-15"


def finished(folder, loss, accuracy=None, **config):
    """A run with a loss at every step, and an accuracy at some."""
    with Writer(folder, meta={"started": 1000.0, "config": {"seed": 0, **config}}) as writer:
        for step in range(6):
            names, values = ["Loss/train_loss mean"], [[loss * (6 - step)]]
            if accuracy is not None and step in (2, 4):
                names, values = [*names, "Logged/accuracy mean"], [*values, [accuracy * step]]
            writer.put("run", step, values, layers=["run"], statistics=names, time=1000.0 + 10 * step)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, serving):
    """The address of a page over five runs."""
    folder = tmp_path_factory.mktemp("sweep")
    for name, loss, accuracy, lr in (
        ("slow", 0.5, 0.1, 0.001),
        ("fast", 0.25, 0.2, 0.1),
        ("gone", math.nan, None, 10.0),
        (LONG, 0.125, 0.15, 0.01),
        ("plain", 1.0, None, 0.02818382931),
    ):
        finished(folder / name, loss, accuracy, lr=lr, data="/a/path/that/never/seems/to/end/and/goes/on/train.parquet")
    with serving(folder) as client:
        yield client.url


def column(page, title):
    """The cells of a column of the table of runs, from top to bottom; of a name that is cut, the whole name."""
    script = (
        "const heads = [...document.querySelectorAll('.run-list thead th')].map((e) => e.textContent);"
        "const place = heads.indexOf(arguments[0]);"
        "const cells = [...document.querySelectorAll('.run-list tbody tr')].map((e) => e.children[place]);"
        "return cells.map((e) => e.querySelector('button[title]')?.title ?? e.textContent)"
    )
    return page.run(script, title)


def test_the_table_of_runs_has_results_settings_that_differ_and_facts(visited, sweep):
    visited.follow(f"{sweep}#tab=runs&runsort=run")
    assert column(visited, "run") == [LONG, "fast", "gone", "plain", "slow"]
    assert column(visited, "train loss") == ["0.125", "0.25", "NaN", "1", "0.5"]
    assert column(visited, "accuracy") == ["0.6", "0.8", "–", "–", "0.4"]  # the last one that was logged
    assert column(visited, "lr") == ["0.01", "0.1", "10", "0.028184", "0.001"]
    assert column(visited, "steps") == ["5"] * 5
    assert column(visited, "status") == ["finished"] * 5
    assert "data" not in visited.texts(".run-list thead th")  # the same in all


def test_the_table_of_runs_is_sorted_by_any_column_and_what_is_nan_comes_last(visited, sweep):
    visited.follow(f"{sweep}#tab=runs")
    newest_first = column(visited, "run")
    visited.click(".run-list thead button", "train loss")
    assert column(visited, "run") == [LONG, "fast", "slow", "plain", "gone"]
    assert visited.run("return document.querySelector('[aria-sort]').ariaSort") == "ascending"
    visited.click(".run-list thead button", "train loss")
    assert column(visited, "run") == ["plain", "slow", "fast", LONG, "gone"]
    visited.click(".run-list thead button", "train loss")
    assert column(visited, "run") == newest_first


def test_the_table_of_runs_is_filtered_by_names_and_settings(page, sweep):
    page.open(f"{sweep}#tab=runs&runsort=run")
    page.keys("/")
    search = page.driver.find_element(By.CSS_SELECTOR, ".run-bar .search")
    assert page.driver.switch_to.active_element == search
    search.send_keys("lr=0.0")
    page.wait(lambda: column(page, "run") == [LONG, "plain", "slow"])
    assert page.texts(".run-bar .muted") == ["3 of 5 runs"]
    page.open(f"{sweep}#tab=runs&runsort=run&runfilter=lr%3D0.0+slow")
    assert column(page, "run") == ["slow"]


def test_a_filter_of_runs_that_is_no_expression_says_so(page, sweep):
    page.open(f"{sweep}#tab=runs&runfilter=lr%3D%280")
    search = page.driver.find_element(By.CSS_SELECTOR, ".run-bar .search")
    assert search.get_attribute("aria-invalid") == "true"
    message = page.driver.find_element(By.ID, search.get_attribute("aria-describedby")).text
    assert message == "0 of 5 runs; the filter is not a regular expression: it is searched as plain text"
    page.open(f"{sweep}#tab=runs&runfilter=lr%3D0")
    search = page.driver.find_element(By.CSS_SELECTOR, ".run-bar .search")
    assert (search.get_attribute("aria-invalid"), search.get_attribute("aria-describedby")) == ("false", None)


def test_no_cell_of_the_table_of_runs_breaks_inside_of_a_word(visited, sweep):
    visited.follow(f"{sweep}#tab=runs")
    tall = (
        "return [...document.querySelectorAll('.run-list th, .run-list td')]"
        ".filter((cell) => cell.clientHeight > 34).map((cell) => cell.textContent)"  # one line, and space around it
    )
    assert visited.run(tall) == []


def test_how_each_run_is_can_be_seen_on_a_telephone_without_scrolling(page, tmp_path, serving, window):
    problem = Finding("no_progress", "warning", None, 12345, 12345, "It is so.", Remedy("Repair it."))
    with Writer(tmp_path / LONG, meta={"started": 1000.0}) as writer:
        writer.put("run", 0, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
        writer.note(findings=[problem.to_json()])
    seen = (
        "const { left, right } = document.querySelector('.run-scroll').getBoundingClientRect();"
        "return [...document.querySelectorAll('.run-list tbody td, .run-list tbody th')]"
        ".map((cell) => [cell.textContent, cell.getBoundingClientRect(), cell.scrollWidth > cell.clientWidth])"
        ".filter(([, place, isCut]) => place.left >= left && place.right <= right && !isCut).map(([text]) => text)"
    )
    with serving(tmp_path) as client:
        window(390, 844)
        page.open(f"{client.url}#tab=runs")
        page.wait(lambda: len(column(page, "health")) == 1)
        assert {"1 problem since step 12,345", "finished"} <= set(page.run(seen))
        page.driver.get("about:blank")


def test_focus_scrolling_and_rows_survive_news_of_a_run(page, tmp_path, new_run, serving, sample):
    for number in range(30):
        finished(tmp_path / f"run{number:02d}", 1.0, lr=number)
    live = new_run(tmp_path / "live")
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=live&tab=runs&runsort=run")
        page.run(
            "window.scroller = document.querySelector('.runs > .run-scroll'); scroller.scrollTop = 120;"
            "window.rows = [...document.querySelectorAll('.run-list tbody tr')];"
            "document.querySelector(`[aria-label='Compare with run11']`).focus({ preventScroll: true })"
        )
        scrolled = page.run("return scroller.scrollTop")
        assert scrolled > 0
        sample.fill(live, range(24, 30))
        live.flush()
        page.wait(lambda: "29" in column(page, "steps"))
        assert page.run("return document.activeElement.ariaLabel") == "Compare with run11"
        assert page.run("return scroller.scrollTop") == scrolled
        same = "return [...document.querySelectorAll('.run-list tbody tr')].every((row, place) => row === rows[place])"
        assert page.run(same)
        finished(tmp_path / "a_new_one", 1.0, lr=1)  # which comes first, so that all rows move
        page.wait(lambda: column(page, "run")[0] == "a_new_one")
        assert page.run("return document.activeElement.ariaLabel") == "Compare with run11"
        live.close()
        page.driver.get("about:blank")


def test_back_returns_to_where_one_was(page, site):
    page.open(f"{site}#run=first&{RATE}")
    page.click(".label[title='block.1.fc'] .name")
    page.click("[role=tab]", "Runs")
    page.click("input[aria-label='Compare with second']")
    page.click(".run-list .link", "second")
    assert page.texts(".run-select option:checked") == []  # an option is never laid out by itself
    assert page.run("return document.querySelector('.run-select').value") == "second"
    where = []
    for _ in range(4):
        page.redraw(page.driver.back)
        where.append(
            (
                page.run("return document.querySelector('.run-select').value"),
                page.texts("[role=tab][aria-selected=true]")[0],
                page.texts(".chip bdi"),
                page.texts(".layer-name"),
            )
        )
    assert where == [
        ("first", "Runs", ["first", "second"], []),
        ("first", "Runs", [], []),
        ("first", "Layer", [], ["block.1.fc"]),
        ("first", "Layer", [], []),
    ]
    page.redraw(page.driver.forward)
    assert page.texts(".layer-name") == ["block.1.fc"]


def test_looks_and_steps_on_the_way_leave_no_entries_to_go_back_through(page, site):
    page.open(f"{site}#run=first&{RATE}")
    before = page.run("return history.length")
    page.keys("s", "m", "x", "j", "j", "]")
    page.driver.find_element(By.CSS_SELECTOR, ".search").send_keys("block")
    page.settle()
    assert page.run("return history.length") == before


def test_a_link_to_a_run_that_does_not_exist_says_so_and_lists_those_that_do(page, site):
    page.open(f"{site}#run=nothing&{RATE}&layer=conv")
    assert page.texts(".runs-message") == ["There is no run nothing here. These are all runs:"]
    assert sorted(column(page, "run")) == ["broken", "first", "second"]
    assert page.run("return document.querySelector('.run-select').selectedOptions[0].text") == "nothing (no such run)"
    assert page.texts(".heat-panel, .strip, .badge, .settings section") == []
    page.click(".run-list .link", "second")
    assert page.texts(".runs-message") == []
    assert page.drawn_step() == 23
    page.redraw(page.driver.back)
    assert "run=nothing" in page.driver.current_url
    assert len(page.texts(".runs-message")) == 1


def test_a_link_to_a_run_that_cannot_be_read_says_so_and_lists_the_others(page, tmp_path, make_run, serving):
    make_run(tmp_path / "first")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/rank0.db").write_bytes(b"no database" * 100)
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=broken&runsort=run")
        assert page.texts(".runs-message")[0].startswith("The run broken is damaged")
        options = "return [...document.querySelector('.run-select').options].map((option) => option.text)"
        assert sorted(page.run(options)) == ["broken (damaged)", "first"]
        assert column(page, "train loss") == ["–", "0.0417"]
        page.click(".run-list .link", "first")
        assert page.drawn_step() == 23
        page.driver.get("about:blank")


def test_a_run_that_begins_later_is_shown_by_the_link_that_waited_for_it(page, tmp_path, make_run, new_run, serving):
    make_run(tmp_path / "first")
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=later&{RATE}")
        assert len(page.texts(".runs-message")) == 1
        writer = new_run(tmp_path / "later", steps=5)
        page.wait(lambda: page.drawn_step() == 4)
        assert page.texts(".runs-message") == []
        writer.close()
        page.driver.get("about:blank")


@pytest.mark.parametrize(
    ("link", "control", "shown"),
    [
        ("sort=foo", "[aria-label='Order of rows'] [aria-checked=true]", "Model"),
        ("rows=tall", "[aria-label='Height of rows'] [aria-checked=true]", "Fit"),
        ("colour=pink", "[aria-label='Colours'] [aria-checked=true]", "Auto"),
        ("cell=median", "[aria-label='A cell shows'] [aria-checked=true]", "Max"),
        ("x=weeks", "[aria-label='Axis'] [aria-checked=true]", "Step"),
        ("tab=nothing", "[role=tab][aria-selected=true]", "Layer"),
        ("layer=nothing", ".layer .empty", 'This run has no layer "nothing".'),
        ("compare=nothing", ".notice", "There is no run nothing to compare with."),
    ],
)
def test_what_an_address_says_in_vain_is_seen_at_its_control(visited, site, link, control, shown):
    visited.follow(f"{site}#run=first&{RATE}&{link}")
    assert visited.texts(control) == [shown]
    assert (link in visited.driver.current_url) == link.startswith("layer")  # a layer may come later


def test_an_unknown_statistic_is_replaced_by_the_one_that_the_list_shows(visited, site):
    visited.follow(f"{site}#run=first&lens=Nothing&statistic=None")
    chosen = visited.run("return document.querySelector('.statistic').selectedOptions[0].text")
    assert chosen == "Rate"
    assert "statistic=Rate%2Fvalue" in visited.driver.current_url


def test_the_exception_that_ended_a_run_is_on_the_page(page, tmp_path, new_run, serving):
    tracebacks = {"traced": ["  File 'train.py', line 7", "    loss.backward()"], "bare": []}
    for name, lines in tracebacks.items():
        writer = new_run(tmp_path / name)
        error = {"type": "OutOfMemoryError", "message": "tried to allocate <b>2 GiB</b>", "traceback": lines}
        writer.note(error=error)
        writer.close("crashed")
    with serving(tmp_path) as client:
        for name, lines in tracebacks.items():
            page.follow(f"{client.url}#run={name}&{RATE}")
            assert page.texts(".error-line") == ["OutOfMemoryError: tried to allocate <b>2 GiB</b>"]
            assert page.texts(".count") == ["1"]
            page.click(".error-line")
            assert page.texts(".run-error b") == ["OutOfMemoryError"]
            assert page.texts(".run-error pre") == (["\n".join(lines)] if lines else [])
        page.driver.get("about:blank")


def test_processes_that_stored_their_own_numbers_are_compared_like_runs(visited, tmp_path, serving, make_run):
    make_run(tmp_path / "eight", steps=6)
    make_run(tmp_path / "eight", steps=8, rank=1)
    with serving(tmp_path) as client:
        visited.follow(f"{client.url}#run=eight&tab=runs")
        assert column(visited, "run") == ["eight", "eight/rank1"]
        assert column(visited, "steps") == ["5", "7"]
        visited.follow(f"{client.url}#run=eight%2Frank1&compare=eight&tab=runs")
        assert visited.run("return document.title").startswith("eight/rank1")
        boxes = "return [...document.querySelectorAll('.run-list .compare input')].map((e) => [e.checked, e.disabled])"
        assert visited.run(boxes) == [[True, False], [False, True]]
