import re
import shlex
from pathlib import Path

import pytest

from monitorch import cli
from monitorch.cli.demo import FAULTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "how_to" / "terminal.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
SAMPLE = re.search(r"^```text\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
LINES = [line for block in BLOCKS for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_every_command_in_the_document_exists_with_its_options(line):
    program, *arguments = shlex.split(line, comments=True)
    assert program == "monitorch"
    assert cli.build_parser().parse_args(arguments).command == arguments[0]


def test_the_document_tells_of_every_reading_command():
    assert {shlex.split(line)[1] for line in LINES} == {"runs", "check", "show", "top", "compare", "export", "demo"}


def test_the_document_names_every_fault():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [fault for fault in FAULTS if f"`{fault}`" not in text] == []


def words(text):
    """Without numbers, and however lines are broken."""
    return re.sub(r"[\d.,]*\d", "0", text).split()


def test_the_document_shows_what_check_prints(tmp_path, capsys):
    assert cli.main(["demo", "--fault", "dead_units", "--quiet", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["check", "--runs", str(tmp_path / "runs")]) == 0
    assert SAMPLE is not None
    assert words(capsys.readouterr().out) == words(SAMPLE[1])
