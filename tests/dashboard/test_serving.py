import contextlib
import socket

import pytest

from monitorch.dashboard import serve
from monitorch.dashboard.run_folder import RunFolder
from monitorch.dashboard.serving import DEFAULT_PORT, listen, url_of
from monitorch.errors import MonitorchError, OptionError


def test_a_port_that_is_taken_is_an_error_that_names_the_cure():
    with contextlib.closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            MonitorchError, match=f"port {port} of 127.0.0.1 is taken: choose another with --port, 0 for"
        ):
            listen("127.0.0.1", port)


def test_without_a_port_the_next_free_one_is_taken():
    with (
        contextlib.closing(listen("127.0.0.1", None)) as first,
        contextlib.closing(listen("127.0.0.1", None)) as second,
    ):
        ports = [taken.getsockname()[1] for taken in (first, second)]
    assert DEFAULT_PORT <= ports[0] < ports[1] < DEFAULT_PORT + 20


def test_an_address_that_is_not_of_this_machine_is_an_error():
    with pytest.raises(MonitorchError, match=r"cannot listen on 192\.0\.2\.1, port 0: "):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["a" * 64, "two..dots\u00fc"])
def test_what_cannot_be_the_name_of_a_machine_is_an_error(host):
    with pytest.raises(MonitorchError, match=f"cannot listen on {host}: it is no name of a machine"):
        listen(host, 0)


def test_an_address_for_all_is_shown_as_the_name_of_the_machine():
    with contextlib.closing(listen("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        assert url_of(listening, "a b&c") == f"http://{socket.gethostname()}:{port}/?token=a+b%26c"


@pytest.mark.parametrize(("host", "has_token"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_token_is_made_up_where_others_can_reach_the_page(tmp_path, host, has_token):
    class Stop(Exception):
        pass

    shown = []

    def on_start(url):
        shown.append(url)
        raise Stop

    with pytest.raises(Stop):
        serve(RunFolder(tmp_path), host, 0, on_start=on_start)
    assert ("?token=" in shown[0]) == has_token
    assert len(shown[0]) > 40 or not has_token


def test_a_token_that_can_be_guessed_is_refused(tmp_path):
    with pytest.raises(OptionError, match="the token must have at least 8 characters"):
        serve(RunFolder(tmp_path), token="1234")
