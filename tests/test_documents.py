"""Every Python block in the documents runs, one after the other, as a reader would run them."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from monitorch.cli import build_parser
from monitorch.engine.columns import Column
from tests.marks import slow

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLAYED = ROOT / "docs" / "tutorial.md"
"""Has a test of its own, which also looks at what it prints."""

START_SERVICES = "trackers.md", "agents.md"
"""Documents whose programs start services of others; each of those has tests of its own."""

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SHELL_BLOCK = re.compile(r"^```(?:sh|console|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name(path):
    """As in a folder of documents."""
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")


# what Lightning says about any small program, and about any that goes on from a checkpoint
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow uses it
@pytest.mark.parametrize(
    "document",
    [slow(document) if document.name in START_SERVICES else document for document in DOCUMENTS if document != PLAYED],
    ids=name,
)
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    names = {}
    for block in PYTHON_BLOCK.finditer(document.read_text(encoding="utf-8")):
        line = document.read_text(encoding="utf-8")[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(document), "exec"), names)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_to_files_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_an_address_follows_the_words_of_its_link(document):
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    assert re.findall(r"[^\]]\([^()\s]+\.md(?:#[^()\s]*)?\)", text) == []


def places(document):
    """What a link into a document may name: its headings, as the site spells them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_into_files_name_a_heading(document):
    links = re.findall(r"\]\(([^)#:\s]*\.md)?#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    assert [(to, place) for to, place in links if place not in places(document.parent / to if to else document)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_of_ours_exist_with_their_options(document):
    shown = "".join(SHELL_BLOCK.findall(document.read_text(encoding="utf-8")))
    for line in re.findall(r"^ *(?:\$ )?monitorch (.*)$", shown, re.MULTILINE):
        build_parser().parse_args(shlex.split(line, comments=True))  # ends the program if there is no such option


def test_the_document_lists_the_columns_as_they_are_declared():
    table = [f"| `{column.name}` | {column.holds} | {column.of} |" for column in Column]
    assert "\n".join(table) in (ROOT / "docs" / "how_it_works" / "engine.md").read_text(encoding="utf-8")


def test_every_function_on_the_way_of_a_tensor_is_where_the_document_says():
    text = (ROOT / "docs" / "how_it_works" / "engine.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| (\d+) \| `([\w/]+)\.py` \| `([\w.]+)` \|", text, re.MULTILINE)
    assert [int(number) for number, *_ in steps] == list(range(1, len(steps) + 1))
    assert 10 <= len(steps) <= 16
    for _, file, name in steps:
        found = importlib.import_module(f"monitorch.{file.replace('/', '.')}")
        for part in name.split("."):
            found = vars(found)[part]
        assert callable(found)
