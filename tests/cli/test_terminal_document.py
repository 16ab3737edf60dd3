import re
import shlex
from pathlib import Path

import pytest

from monitorch import cli
from monitorch.cli.demo import FAULTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "how_to" / "terminal.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
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
