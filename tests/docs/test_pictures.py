"""Pictures are made of real runs that show what they should, and pages are renewed with them."""

import doctest
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from docs.pictures import pages
from docs.pictures.__main__ import NAMES, main, make
from docs.pictures.drawing import DARK, draw
from docs.pictures.pages import PAGES, meaning, renew, thresholds
from docs.pictures.recipes import PICTURES
from docs.pictures.runs import WrongFindingError, pair

SVG = "{http://www.w3.org/2000/svg}"


def short(case, steps=40):
    """The same for fewer steps."""

    def base(seed):
        program = case.base(seed)
        program.steps = steps
        return program

    return replace(case, base=base)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two short runs of a layer that no optimizer has."""
    folder = tmp_path_factory.mktemp("runs")
    pair("no_update", short(PICTURES["no_update"].case), folder)
    return folder


@pytest.fixture
def found(runs):
    return pair("no_update", short(PICTURES["no_update"].case), runs)


def test_a_pair_is_a_run_in_which_nothing_is_found_and_one_with_the_symptom_first(found):
    assert found.healthy.findings == []
    assert (found.finding.symptom, found.finding.layer) == ("no_update", "4")
    assert len(found.sick.view.loss) == len(found.healthy.view.loss) == 40


def test_runs_that_are_there_are_not_trained_again(runs, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*.db")}
    assert before
    pair("no_update", short(PICTURES["no_update"].case), runs)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*.db")} == before


def test_a_run_that_shows_something_else_makes_no_picture(runs, tmp_path):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    for kind in ("healthy", "sick"):
        (tmp_path / f"no_update-{kind}").rename(tmp_path / f"dead_units-{kind}")
    with pytest.raises(WrongFindingError, match=r"should show dead_units first, but has \['no_update'\]"):
        pair("dead_units", short(PICTURES["no_update"].case), tmp_path)


def test_a_twin_that_is_not_healthy_makes_no_picture(runs, tmp_path):
    for kind in ("healthy", "sick"):
        shutil.copytree(runs / "no_update-sick", tmp_path / f"no_update-{kind}")
    with pytest.raises(WrongFindingError, match="nothing should be found in the healthy twin"):
        pair("no_update", short(PICTURES["no_update"].case), tmp_path)


def test_a_picture_shows_each_weight_of_both_runs_the_threshold_lines_and_the_losses(found):
    root = ElementTree.fromstring(draw(PICTURES["no_update"], found))
    said = {text.text for text in root.iter(f"{SVG}text")}
    assert {"Healthy: all layers are in the optimizer", "Sick: layer 4 is not", "loss", "4.weight"} <= said
    assert f"found at step {found.finding.detected_at}" in said
    lines = [path for path in root.iter(f"{SVG}path") if "clip-path" in path.attrib and "stroke" in path.get("style")]
    drawn = [path for path in lines if path.get("d").count("L") > 2]
    assert len(drawn) == 2 * (5 + 1)  # five weights and a loss


def test_examples_of_what_pages_take_from_the_code_are_true():
    assert doctest.testmod(pages).failed == 0


def test_every_colour_of_a_picture_has_one_for_dark_pages(found):
    svg = draw(PICTURES["no_update"], found)
    style, drawing = svg.split("</style>", 1)
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", drawing)) <= DARK.keys()
    for light, dark in DARK.items():
        assert f'[style*="fill: {light}"]{{fill:{dark}!important}}' in style


def test_the_same_runs_give_the_same_file(found):
    assert draw(PICTURES["no_update"], found) == draw(PICTURES["no_update"], found)


def test_a_page_is_renewed_with_what_the_code_says_and_keeps_the_rest(found):
    picture = PICTURES["no_update"]
    page = (PAGES / "no_update.md").read_text(encoding="utf-8")
    old = page.replace("| 3 |", "| 33 |").replace(meaning(picture.symptom), "Something\nelse.", 1)
    old = re.sub(r"> .*", "> info: nothing\n> at all", old, count=1)
    assert old != page
    renewed = renew(old, picture, found.finding)
    assert thresholds(picture.symptom) in renewed
    assert f"\n\n> {found.finding.line}\n\n" in renewed
    assert renewed == renew(page, picture, found.finding)
    assert renewed.split("## How to read it")[1] == page.split("## How to read it")[1]


@pytest.mark.parametrize("names", [["dead"], ["dead_units", "nothing"], ["dashboard.png"]])
def test_unknown_names_are_refused_with_those_that_there_are(names, capsys):
    with pytest.raises(SystemExit) as error:
        main(names)
    assert error.value.code == 2
    assert f"there are {', '.join(NAMES)}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_gradient", "output_loss_mismatch"])
def test_a_picture_can_be_made_again_and_its_page_says_the_same(name, tmp_path):
    pages = tmp_path / "pages"
    shutil.copytree(PAGES, pages)
    (pages / "pictures" / f"{name}.svg").unlink()
    make(name, tmp_path / "runs", pages)  # raises unless the sick run has it first and the healthy one nothing
    new, committed = ((folder / f"{name}.md").read_text(encoding="utf-8") for folder in (pages, PAGES))
    heading = f": {name.replace('_', ' ')} in "
    assert heading in new
    assert _heading(new) == _heading(committed)
    said = [
        [text.text for text in ElementTree.parse(folder / "pictures" / f"{name}.svg").iter(f"{SVG}text")]
        for folder in (pages, PAGES)
    ]
    assert set(PICTURES[name].healthy.split()) <= set(" ".join(said[0]).split())
    assert [text for text in said[0] if not _is_number(text)] == [text for text in said[1] if not _is_number(text)]


def _heading(page):
    """How bad what is where since when, as the page quotes it; numbers after it may differ between machines."""
    (line,) = re.findall(r"^> (\w+: .*? since step \d+)", page, re.MULTILINE)
    return line


def _is_number(text):
    return re.fullmatch(r"[-−\d.e]+", text) is not None
