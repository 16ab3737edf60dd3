import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from monitorch import cli
from monitorch.store import Writer


@pytest.mark.xdist_group("processes")
def test_the_page_is_served_until_the_process_is_interrupted(tmp_path):
    with Writer(tmp_path / "runs/first") as writer:
        writer.put("Norm", 1, [[1.0]], layers=["fc"], statistics=["mean"])
    command = [sys.executable, "-m", "monitorch", "ui", str(tmp_path / "runs"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        try:
            assert line.startswith(f"1 run in {tmp_path / 'runs'}: http://127.0.0.1:")
            with urllib.request.urlopen(line.split()[-1] + "api/runs", timeout=10) as answer:
                assert b'"first"' in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no folder nowhere: name one with runs, such as monitorch_runs"),
        ([".", "--token", "short"], "the token must have at least 8 characters"),
        ([".", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ],
)
def test_what_is_wrong_is_said(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ui", *arguments]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_is_a_number(port, capsys):
    with pytest.raises(SystemExit):
        cli.main(["ui", f"--port={port}"])
    assert "is not a whole number between 0 and 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "is_terminal", "has_screen", "opens"),
    [
        ([], True, True, True),
        ([], True, False, False),
        ([], False, True, False),
        (["--browser"], False, False, True),
        (["--no-browser"], True, True, False),
    ],
)
def test_a_browser_is_opened_when_asked_or_on_a_terminal(
    options, is_terminal, has_screen, opens, tmp_path, monkeypatch
):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0" if has_screen else "")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(
        "monitorch.dashboard.serving.serve", lambda run_folder, host, port, token, start: start("the url")
    )
    assert cli.main(["ui", os.fspath(tmp_path), *options]) == 0
    assert opened == ["the url"] * opens
