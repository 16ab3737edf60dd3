import http.client
import json
import shutil
from urllib.parse import quote

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory, new_run):
    folder = tmp_path_factory.mktemp("runs")
    writer = new_run(folder / "first")
    writer.event(3, "spike", "warning", layer="conv", body={"limit": float("inf")})
    writer.put_histograms("Rates", "Shape", 5, [[0, 3]], layers=["conv"], edges=[0.0, 0.5, 1.0])
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
    assert client.json("/api/health?run=first")["verdict"] == "not diagnosed"
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
        ("histogram?run=first&lens=Rates", 400, "lens= and tag= are needed"),
        ("histogram?run=first&lens=No&tag=Rate", 400, "lens='No' is unknown; choose from"),
        ("histogram?run=first&lens=Rates&tag=Rate", 400, "tag='Rate' is unknown"),
        ("histogram?run=first&lens=Rates&tag=Shape&layer=conv", 200, '"counts": [[3]]'),
        ("histogram?run=first&lens=Rates&tag=Shape&layer=no", 200, '"counts": []'),
        ("histogram?run=first&lens=Rates&tag=Shape&layer=conv&step=1", 200, "null"),
        ("nothing", 404, "Not Found"),
    ],
)
def test_what_cannot_be_answered_says_why(client, path, status, message):
    answer = client.ask(f"/api/{path}")
    assert answer.status == status
    assert message in answer.body.decode()


WINDOW = "windows?run=first&lens=Rates&statistic=Rate/value"
SHAPE = "histogram?run=first&lens=Rates&tag=Shape&layer=conv&step="
NUMBERS = ["events?run=first&since=", f"{WINDOW}&first=", f"{WINDOW}&last=", SHAPE, f"{WINDOW}&resolution="]


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize(
    "value",
    ["x", "1.5", "1e3", "nan", "inf", "-", "0x10", "%00", "9" * 19, "-" + "9" * 30, "9" * 5000, "%F0%9F%A6%8A", "1;2"],
)
def test_what_is_no_number_is_a_bad_request(client, path, value):
    answer = client.ask(f"/api/{path}{value}")
    assert answer.status == 400
    assert len(answer.body) < 300
    assert "must be a whole number" in json.loads(answer.body)["error"]


@pytest.mark.parametrize("path", NUMBERS[:4])
@pytest.mark.parametrize("value", ["", "0", "-1", "999999999999999999", "-999999999999999999"])
def test_any_number_of_a_step_is_answered(client, path, value):
    assert client.ask(f"/api/{path}{value}").status == 200


@pytest.fixture(scope="module")
def broken(tmp_path_factory, new_run, serving):
    """Runs that cannot be read, each in its way, and one that crashed."""
    folder = tmp_path_factory.mktemp("broken")
    for name, content in (("empty", b""), ("text", b"no database" * 100), ("cut", None), ("newer", None)):
        writer = new_run(folder / name)
        writer.close()
        whole = writer.path.read_bytes()
        changed = {"cut": whole[:5000], "newer": whole[:60] + (99).to_bytes(4, "big") + whole[64:]}
        writer.path.write_bytes(changed.get(name, content))
    new_run(folder / "crashed").close("crashed", error=ValueError("loss is NaN\nsince step 3"))
    (folder / "loop").symlink_to(folder / "loop")
    with serving(folder) as asking:
        yield folder, asking


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "the run 'empty' is empty: nothing was stored yet"),
        ("text", "the run 'text' is damaged or not a run of monitorch"),
        ("cut", "the run 'cut' is damaged or not a run of monitorch"),
        ("newer", "the run 'newer' was written by a newer monitorch"),
        ("loop", "there is no run 'loop'; there are crashed, cut, empty, newer, text"),
    ],
)
@pytest.mark.parametrize("path", ["head?", "health?", "events?", "windows?lens=Rates&statistic=Rate/value&"])
def test_a_run_that_cannot_be_read_is_told_without_its_place_on_the_disk(broken, path, name, message):
    folder, client = broken
    answer = client.ask(f"/api/{path}run={name}")
    assert answer.status == 404
    assert json.loads(answer.body)["error"].startswith(message)
    assert str(folder) not in answer.body.decode()


def test_runs_are_listed_with_what_is_wrong_with_them(broken):
    folder, client = broken
    infos = {info["name"]: info for info in client.json("/api/runs")}
    states = {name: info["status"] for name, info in infos.items()}
    assert states == {
        "empty": "empty", "text": "damaged", "cut": "damaged", "newer": "newer", "crashed": "crashed",
    }  # fmt: skip
    assert infos["newer"]["problem"].startswith("was written by a newer monitorch")
    assert (infos["crashed"]["problem"], infos["empty"]["error"]) == (None, None)
    for error in (infos["crashed"]["error"], client.json("/api/head?run=crashed")["error"]):
        assert (error["type"], error["message"]) == ("ValueError", "loss is NaN\nsince step 3")
        assert error["traceback"][-2:] == ["ValueError: loss is NaN", "since step 3"]
    assert str(folder) not in json.dumps(infos)


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
