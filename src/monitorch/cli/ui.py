"""Show runs in a browser, also while they train."""

import argparse
import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from ..errors import OptionError
from .arguments import whole_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("runs", type=Path, nargs="?", metavar="RUNS", help="folder of runs, or of one run (monitorch_runs)")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s: this machine only)")
    add(
        "--port",
        type=whole_number(0, 65535),
        metavar="N",
        help="port to listen on, 0 for any (8700, or the next that is free)",
    )
    add("--token", metavar="TEXT", help="secret that a browser needs; made if the address is not local")
    add("--browser", action=argparse.BooleanOptionalAction, help="open a browser (default: if run from a terminal)")


def run(options: argparse.Namespace) -> None:
    """Serve until interrupted."""
    from ..dashboard.run_folder import RunFolder
    from ..dashboard.serving import serve
    from ..store import DEFAULT_FOLDER
    from .wording import count_text, printable

    folder = options.runs or Path(DEFAULT_FOLDER)
    if options.runs is not None and not folder.is_dir():
        raise OptionError(f"there is no folder {folder}: name one with runs, such as {DEFAULT_FOLDER}")
    run_folder = RunFolder(folder)
    opens = _has_screen() if options.browser is None else options.browser

    def start(url: str) -> None:
        where = f"{count_text(len(run_folder.names()), 'run')} in {printable(folder)}"
        print(f"{where}: {url}\nCtrl-C ends the server.", flush=True)
        if opens:
            webbrowser.open(url)

    with suppress(KeyboardInterrupt):  # Ctrl-C is the way to quit
        serve(run_folder, options.host, options.port, options.token, start)


def _has_screen() -> bool:
    """Whether a user is at a terminal, and a browser would open in a window, not in the terminal."""
    has_windows = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_windows and sys.stdout.isatty()
