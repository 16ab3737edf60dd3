"""Plays the tutorial as a reader would: what it prints goes into the page, and its runs into pictures."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from monitorch import cli

from .dashboard import FIGURES, photograph

PAGE = Path(__file__).parents[1] / "tutorial.md"
PICTURES = {
    "tutorial.png": {"run": "stripes"},
    "tutorial_compare.png": {"run": "stripes-mended", "compare": "stripes", "difference": 1, "findings": "hidden"},
}
"""What the page shows in each picture."""

BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def play(text: str, folder: Path) -> str:
    """The page with what its blocks print now, run one after the other in a folder.

    A block of text after one of Python is what that prints; a console has a command and what it prints.
    """
    names: dict[str, Any] = {"__name__": "tutorial"}
    printed = ""

    def played(block: re.Match[str]) -> str:
        nonlocal printed
        kind, content = block.groups()
        if kind == "python":
            with redirect_stdout(StringIO()) as output:
                exec(compile(content, str(PAGE), "exec"), names)
            printed = output.getvalue()
            return block[0]
        if kind == "text":
            return f"```text\n{_tidy(printed)}```"
        command = content.splitlines()[0]
        with redirect_stdout(StringIO()) as output:
            cli.main(shlex.split(command.removeprefix("$ monitorch ")))
        return f"```console\n{command}\n{_tidy(output.getvalue())}```"

    threads, before = torch.get_num_threads(), Path.cwd()
    torch.set_num_threads(1)  # the same numbers on any number of cores
    os.chdir(folder)
    try:
        with patch.dict(os.environ, {"COLUMNS": "110"}), redirect_stderr(StringIO()):
            return BLOCK.sub(played, text)
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)


def _tidy(printed: str) -> str:
    """Without blanks at ends of lines, and with the command as a reader types it."""
    printed = re.sub(r"(?<=to look at it: ).*", "monitorch ui", printed)
    return "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())


def make(runs: Path, page: Path = PAGE, figures: Path = FIGURES) -> None:
    """Play the tutorial, renew what it prints, and take its pictures."""
    folder = runs / "tutorial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    page.write_text(play(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    photograph(folder / "monitorch_runs", PICTURES, figures)
