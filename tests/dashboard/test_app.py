import http.client
import shutil
from urllib.parse import quote

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory, new_run):
    folder = tmp_path_factory.mktemp("runs")
    writer = new_run(folder / "first")
    writer.event(3, "spike", "warning", layer="conv", body={"limit": float("inf")})
    writer.close()
    new_run(folder.parent / "secret").close()
    return folder


@pytest.fixture(scope="module")
def client(folder, serving):
    with serving(folder) as asking:
        yield asking


def test_names_and_events_are_json(client):
    (info,) = client.json("/api/runs")
    assert (info["name"], info["status"], info["last_step"], info["path"]) == ("first", "finished", 23, None)
    assert client.json("/api/head?run=first")["last_step"] == 23
    (event,) = client.json("/api/events?run=first")
    assert (event["kind"], event["layer"], event["body"]) == ("spike", "conv", {"limit": "Infinity"})
    assert client.json(f"/api/events?run=first&since={event['id']}") == []


def test_summaries_are_those_of_runs_that_can_be_read(client, folder):
    (folder / "broken").mkdir()
    (folder / "broken/rank0.db").write_bytes(b"no database" * 100)
    found = client.json("/api/summaries?run=first&run=nothing&run=broken")
    assert list(found) == ["first"]
    assert found["first"]["newest"] == {"Loss/train_loss mean": pytest.approx(1 / 24)}
    assert client.json("/api/summaries") == {}
    shutil.rmtree(folder / "broken")


def test_numbers_are_bytes(client, sample):
    query = "run=first&lens=Rates&statistic=Rate/value&lens=Norms&statistic=Norm/mean&layer=head&first=5&last=7"
    rates, norms = client.blocks(query)
    assert (rates["lens"], norms["statistic"], rates["layers"]) == ("Rates", "Norm/mean", ["head"])
    assert rates["mean"].tolist()[0] == pytest.approx([sample.rate(4, step) for step in (5, 6, 7)])


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("head", 400, "run= is missing"),
        ("head?run=nothing", 404, "there is no run 'nothing'; there are first"),
        ("windows?run=first", 400, "lens= and statistic= come in pairs, at least one"),
        ("windows?run=first&lens=Rates", 400, "come in pairs"),
        ("windows?run=first&lens=Rates&statistic=No", 400, "statistic='No' is unknown; choose from 'Rate/value'"),
        ("windows?run=first&lens=Rates&statistic=Rate/value&first=x", 400, "first='x' must be a whole number"),
        ("windows?run=first&lens=Rates&statistic=Rate/value&resolution=0", 400, "resolution=0 must be"),
        ("windows?run=first&lens=Rates&statistic=Rate/value&layer=no", 200, ""),
        ("nothing", 404, "Not Found"),
    ],
)
def test_what_cannot_be_answered_says_why(client, path, status, message):
    answer = client.ask(f"/api/{path}")
    assert answer.status == status
    assert message in answer.body.decode()


TRAVERSALS = ["../secret", "..", "/etc", "first/../../secret", "%2e%2e%2fsecret", "....//secret", "..%5csecret"]


@pytest.mark.parametrize("name", TRAVERSALS)
@pytest.mark.parametrize("encoded", [True, False])
def test_no_run_outside_of_the_folder_can_be_named(client, name, encoded):
    answer = client.ask(f"/api/head?run={quote(name, safe='') if encoded else name}")
    assert answer.status == 404
    assert b"there is no run" in answer.body


@pytest.mark.parametrize(
    "path",
    ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/static/../../app.py", "//etc/passwd", "/vendor/../../app.py"],
)
def test_no_file_outside_of_the_page_can_be_named(client, path):
    assert client.ask(path).status in (404, 400)


@pytest.mark.parametrize("path", ["/", "/main.js", "/style.css", "/vendor/uplot/uPlot.iife.min.js"])
def test_files_of_the_page_are_asked_about_each_time(client, path):
    answer = client.ask(path)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert client.ask(path, If_None_Match=answer.headers["etag"]).status == 304


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/live?run=first"])
def test_a_head_request_has_no_body(client, path):
    answer = client.ask(path, "HEAD")
    assert (answer.status, answer.body) == (200, b"")


def test_a_stream_ticks_after_a_commit_and_carries_nothing(tmp_path, new_run, serving, sample):
    writer = new_run(tmp_path / "live")
    with serving(tmp_path) as client:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
        connection.request("GET", "/api/live?run=live")
        stream = connection.getresponse()
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.readline() == b":\n"  # it listens
        assert stream.readline() == b"\n"
        sample.fill(writer, [24])
        writer.flush()
        assert stream.readline() == b"data\n"
        assert stream.readline() == b"\n"
        writer.close()
        stream.close()
        connection.close()
