import json
import shutil

import pytest

from monitorch import cli
from monitorch.dashboard.run_folder import RunFolder
from monitorch.errors import StoreError


@pytest.fixture
def run_folder(tmp_path, make_run):
    make_run(tmp_path / "runs/first", steps=2)
    make_run(tmp_path / "secret", steps=2)
    opened = RunFolder(tmp_path / "runs")
    yield opened
    opened.close()


def test_runs_are_opened_by_name_and_stay_open(run_folder):
    assert run_folder.names() == ("first",)
    assert run_folder.run("first").last_step == 1
    assert run_folder.run("first") is run_folder.run("first")


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "..",
        ".",
        "",
        "/",
        "first/../../secret",
        "first/",
        "first\0",
        "%2e%2e/secret",
        "..\\secret",
        "FIRST",
    ],
)
def test_only_names_of_runs_are_names(run_folder, name):
    with pytest.raises(StoreError, match=r"there is no run .*; there are first"):
        run_folder.run(name)


def test_absolute_paths_are_no_names(run_folder, tmp_path):
    with pytest.raises(StoreError, match="there is no run"):
        run_folder.run(str(tmp_path / "secret"))


@pytest.mark.parametrize("what", ["folder", "file"])
def test_links_that_somebody_has_put_into_the_folder_are_runs(run_folder, tmp_path, what):
    link = tmp_path / "runs/link"
    if what == "folder":
        link.symlink_to(tmp_path / "secret")
    else:
        link.mkdir()
        (link / "rank0.db").symlink_to(tmp_path / "secret/rank0.db")
    assert run_folder.names() == ("first", "link")
    assert run_folder.run("link").last_step == 1


def test_links_that_lead_nowhere_or_to_no_run_are_none(run_folder, tmp_path):
    (tmp_path / "runs/gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "runs/home").symlink_to(tmp_path)
    (tmp_path / "runs/notes").mkdir()
    for name in ("gone", "home", "notes"):
        with pytest.raises(StoreError, match=rf"^there is no run '{name}'; there are first$"):
            run_folder.run(name)


def test_the_page_has_the_runs_that_the_terminal_lists(tmp_path, make_run, capsys):
    folder = tmp_path / "runs"
    make_run(folder / "good", steps=2)
    make_run(tmp_path / "elsewhere", steps=2)
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    for name, content in (("empty", b""), ("text", b"no database" * 100)):
        (folder / name).mkdir()
        (folder / name / "rank0.db").write_bytes(content)
    (folder / "notes").mkdir()
    assert cli.main(["runs", str(folder), "--json"]) == 0
    listed = {info["name"]: info["status"] for info in json.loads(capsys.readouterr().out)["runs"]}
    assert listed == {"good": "finished", "link": "finished", "empty": "empty", "text": "damaged"}
    run_folder = RunFolder(folder)
    assert {info.name: info.status for info in run_folder.infos()} == listed
    assert set(run_folder.names()) == set(listed)


def test_the_folder_of_a_run_is_that_run_alone(tmp_path, make_run):
    make_run(tmp_path / "first", steps=2)
    make_run(tmp_path / "second", steps=2)
    alone = RunFolder(tmp_path / "second")
    assert alone.names() == ("second",)
    assert [info.name for info in alone.infos()] == ["second"]


def test_other_ranks_of_a_run_follow_it_as_runs_of_their_own(tmp_path, make_run):
    make_run(tmp_path / "other", steps=2)
    for rank, steps in ((2, 3), (10, 4), (4, 5)):
        make_run(tmp_path / "several", steps=steps, rank=rank)
    run_folder = RunFolder(tmp_path)
    several = ["several", "several/rank4", "several/rank10"]
    assert run_folder.names() == ("other", *several)
    infos = [info for info in run_folder.infos() if info.name != "other"]
    assert [(info.name, info.last_step, info.ranks) for info in infos] == [
        ("several", 2, (2, 4, 10)),
        ("several/rank4", 4, (4,)),
        ("several/rank10", 3, (10,)),
    ]
    assert infos[0].size == sum(path.stat().st_size for path in (tmp_path / "several").iterdir())
    assert infos[1].size == (tmp_path / "several/rank4.db").stat().st_size
    assert [run_folder.run(name).last_step for name in several] == [2, 4, 3]
    for name in ("several/rank2", "several/rank3", "several/rank", "several/rank4.db", "several/rank4/", "other/rank0"):
        with pytest.raises(StoreError, match="there is no run"):
            run_folder.run(name)
    run_folder.close()


def test_a_run_that_was_replaced_is_opened_again(run_folder, tmp_path, make_run):
    assert run_folder.run("first").last_step == 1
    make_run(tmp_path / "other", steps=4)
    (tmp_path / "other/rank0.db").replace(tmp_path / "runs/first/rank0.db")
    assert run_folder.run("first").last_step == 3


def test_a_run_that_was_removed_is_no_more(run_folder, tmp_path):
    run_folder.run("first")
    shutil.rmtree(tmp_path / "runs/first")
    with pytest.raises(StoreError, match="there is no run 'first'; there are none"):
        run_folder.run("first")


def test_a_folder_that_is_not_there_yet_has_no_runs(tmp_path):
    assert RunFolder(tmp_path / "later").names() == ()
