"""Each lens has a page with a picture of a healthy and a sick run, and all that is wanted on it."""

import re
import shutil

import pytest

from docs.pictures import signals
from docs.pictures.drawing import DARK
from docs.pictures.lenses import PAGES, PICTURES, make, renew
from monitorch import lens

HEADINGS = ["The number", "How to read it", "In a script", "What it costs", "Caveats"]
LENSES = sorted(set(lens.__all__) - {"AbstractLens"})
each_lens = pytest.mark.parametrize("name", LENSES)


def stem(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def test_each_lens_has_a_page_and_a_picture_and_there_are_no_others():
    known = sorted(map(stem, LENSES))
    assert sorted(path.stem for path in PAGES.glob("*.md")) == known
    assert sorted(path.stem for path in (PAGES / "pictures").iterdir()) == known
    assert sorted(PICTURES) == known


@each_lens
def test_a_page_has_all_that_is_wanted(name):
    text = (PAGES / f"{stem(name)}.md").read_text(encoding="utf-8")
    title, sentence, picture, *_ = text.split("\n\n")
    assert title == f"# {name}"
    assert re.fullmatch(r"[A-Z].*[.?]", sentence, re.DOTALL)
    assert picture.startswith("![Healthy: ")
    assert re.findall("^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert f"import {name}\n" in text.split("## In a script")[1]
    assert renew(text, stem(name)) == text


@pytest.mark.parametrize("name", signals.PICTURES)
def test_a_page_of_a_signal_has_the_same(name):
    assert sorted(signals.PICTURES) == sorted(path.stem for path in signals.PAGES.glob("*.md"))
    text = (signals.PAGES / f"{name}.md").read_text(encoding="utf-8")
    _, sentence, picture, *_ = text.split("\n\n")
    assert re.fullmatch(r"[A-Z].*\.", sentence, re.DOTALL)
    assert picture.startswith("![Healthy: ")
    assert re.findall("^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert renew(text, name, signals.PICTURES) == text


def test_a_batch_comes_late_from_some_step_on_and_is_the_same(monkeypatch):
    waited = []
    monkeypatch.setattr(signals.time, "sleep", waited.append)
    batches = [signals.come_late(step, "x", "y") for step in (0, signals.LATE - 1, signals.LATE)]
    assert batches == [("x", "y")] * 3
    assert waited == [signals.WAIT]


@pytest.mark.slow
@pytest.mark.parametrize("name", signals.PICTURES)
def test_a_picture_of_a_signal_can_be_made_again_and_its_page_says_the_same(name, tmp_path):
    pages = tmp_path / "pages"
    shutil.copytree(signals.PAGES, pages)
    (pages / "pictures" / f"{name}.svg").unlink()
    signals.make(name, tmp_path, pages)
    assert (pages / f"{name}.md").read_text() == (signals.PAGES / f"{name}.md").read_text()
    assert ("found at step" in (pages / "pictures" / f"{name}.svg").read_text()) == (name == "probe")


@pytest.mark.parametrize(
    "path",
    [*(PAGES / "pictures" / f"{stem(name)}.svg" for name in LENSES), *sorted(signals.PAGES.glob("pictures/*.svg"))],
    ids=lambda path: path.stem,
)
def test_pictures_are_small_and_have_two_looks(path):
    svg = path.read_text(encoding="utf-8")
    assert len(svg) < 150_000
    style, drawing = svg.split("</style>", 1)
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", drawing)) <= DARK.keys()
    assert {"Healthy: ", "Sick: "} <= set(re.findall("Healthy: |Sick: ", drawing))


@pytest.mark.slow
def test_a_picture_can_be_made_again_and_its_page_says_the_same(tmp_path):
    pages = tmp_path / "pages"
    shutil.copytree(PAGES, pages)
    (pages / "pictures" / "parameter_facts.svg").unlink()
    make("parameter_facts", tmp_path, pages)  # raises unless the sick run has its fault first and the healthy one none
    assert (pages / "parameter_facts.md").read_text() == (PAGES / "parameter_facts.md").read_text()
    new, committed = (
        re.findall(
            "Healthy: .*?<|Sick: .*?<", (folder / "pictures" / "parameter_facts.svg").read_text(encoding="utf-8")
        )
        for folder in (pages, PAGES)
    )
    assert new == committed
