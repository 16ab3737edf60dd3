"""Write a run as one HTML file that opens anywhere, without a network."""

import argparse
from pathlib import Path

from ..errors import MonitorchError, StoreError
from ..store import DEFAULT_FOLDER
from .arguments import whole_number

_LARGEST_BYTES = 6_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("run", nargs="+", metavar="RUN", help=f"folder of a run, or its name in {DEFAULT_FOLDER}; others to compare")
    add("-o", "--out", type=Path, metavar="FILE", help="where to (RUN.html)")
    add("--columns", type=whole_number(40, 4000), default=500, metavar="N", help="moments to keep (%(default)s)")


def run(options: argparse.Namespace) -> None:
    """Read, write, say where."""
    from ..dashboard.notebook import report_html

    folders = [_folder(name) for name in options.run]
    out = options.out or Path(f"{folders[0].resolve().name}.html")
    if out.is_dir():
        raise MonitorchError(f"{out} is a folder: name a file, such as {out / 'report.html'}")
    report = report_html(*folders, columns=options.columns, max_bytes=_LARGEST_BYTES)
    print(f"{report.save(out)}: {len(report.html.encode()) / 1e6:.1f} MB")


def _folder(name: str) -> Path:
    for path in (Path(name), Path(DEFAULT_FOLDER, name)):
        if path.exists():
            return path
    raise StoreError(f"there is no run {name}, neither here nor in {DEFAULT_FOLDER}")
