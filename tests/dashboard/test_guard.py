"""Who is let in."""

import base64
import hashlib
import re
from urllib.parse import urlencode

import pytest

from monitorch.dashboard.guard import is_loopback

TOKEN = "a secret of some length & more"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, new_run):
    folder = tmp_path_factory.mktemp("runs")
    new_run(folder / "first", steps=2).close()
    return folder


@pytest.fixture(scope="module")
def client(folder, serving):
    with serving(folder) as asking:
        yield asking


@pytest.fixture(scope="module")
def elsewhere(folder, serving):
    """A server that believes to be on an address that others can reach."""
    with serving(folder, host="0.0.0.0", token=TOKEN) as asking:
        yield asking


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_the_page_only_reads(client, method, path):
    answer = client.ask(path, method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1", "127.0.0.2:80", "[::1]:8700", "LOCALHOST"])
def test_names_of_this_machine_are_served(client, host):
    assert client.ask("/api/runs", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "["]
)
def test_foreign_names_are_refused(client, host):
    assert client.ask("/api/runs", Host=host).status == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", "x", "http://[", "http://::]"]
)
def test_foreign_pages_are_refused(client, origin):
    assert client.ask("/api/runs", Origin=origin).status == 403


def test_its_own_page_is_served(client):
    assert client.ask("/api/runs", Origin=client.url.rstrip("/")).status == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
    ],
)
def test_what_a_foreign_page_embeds_is_refused_but_its_links_work(client, site, mode, status):
    assert client.ask("/api/runs", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode).status == status


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/runs", "/nothing"])
def test_nothing_foreign_and_nothing_inline_but_the_import_map_may_run(client, path):
    policy = client.ask(path).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    text = client.ask("/").body.decode()
    (map_text,) = re.findall(r'<script type="importmap">(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(map_text.encode()).digest()).decode()
    assert (rules["default-src"], rules["style-src"]) == ("'none'", "'self'")
    assert rules["script-src"] == f"'self' 'sha256-{digest}'"
    assert "unsafe" not in policy


def test_the_page_has_no_inline_script_but_the_import_map(client):
    text = client.ask("/").body.decode()
    assert re.findall(r"<script([^>]*)>[^<]", text) == [' type="importmap"']
    assert re.search(r"\son\w+=|style=", text) is None


def test_on_other_addresses_a_token_is_needed(elsewhere):
    answer = elsewhere.ask("/api/runs")
    assert answer.status == 401
    assert b"open the URL that monitorch ui has printed" in answer.body
    assert elsewhere.ask("/").status == 401
    assert elsewhere.ask("/?token=wrong").status == 401
    assert elsewhere.ask("/api/runs", Authorization="Bearer wrong").status == 401
    assert elsewhere.ask("/api/runs", Authorization=f"Bearer {TOKEN}", Host="node7").status == 200


def test_a_token_in_the_url_becomes_a_cookie_and_leaves_the_url(elsewhere):
    answer = elsewhere.ask(f"/?{urlencode({'token': TOKEN, 'more': '1'})}", Host="node7:80")
    assert (answer.status, answer.headers["location"]) == (303, "./?more=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert elsewhere.ask("/api/runs", Cookie=cookie.split(";")[0]).status == 200


def test_a_foreign_page_is_refused_even_with_the_token(elsewhere):
    answer = elsewhere.ask("/api/runs", Authorization=f"Bearer {TOKEN}", Origin="http://evil.example")
    assert answer.status == 403


@pytest.mark.parametrize(("host", "wanted"), [("127.8.0.1", True), ("192.168.0.1", False), ("example.org", False)])
def test_loopback(host, wanted):
    assert is_loopback(host) is wanted
