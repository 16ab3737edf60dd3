import shutil

import pytest

from monitorch.dashboard.shelf import RunShelf
from monitorch.errors import StoreError


@pytest.fixture
def shelf(tmp_path, make_run):
    make_run(tmp_path / "runs/first", steps=2)
    make_run(tmp_path / "secret", steps=2)
    opened = RunShelf(tmp_path / "runs")
    yield opened
    opened.close()


def test_runs_are_opened_by_name_and_stay_open(shelf):
    assert shelf.names() == ("first",)
    assert shelf.run("first").last_step == 1
    assert shelf.run("first") is shelf.run("first")


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
def test_only_names_of_runs_are_names(shelf, name):
    with pytest.raises(StoreError, match=r"there is no run .*; there are first"):
        shelf.run(name)


def test_absolute_paths_are_no_names(shelf, tmp_path):
    with pytest.raises(StoreError, match="there is no run"):
        shelf.run(str(tmp_path / "secret"))


@pytest.mark.parametrize("what", ["folder", "file"])
def test_links_out_of_the_folder_are_not_followed(shelf, tmp_path, what):
    link = tmp_path / "runs/link"
    if what == "folder":
        link.symlink_to(tmp_path / "secret")
    else:
        link.mkdir()
        (link / "rank0.db").symlink_to(tmp_path / "secret/rank0.db")
    assert shelf.names() == ("first",)
    assert [info.name for info in shelf.infos()] == ["first"]
    with pytest.raises(StoreError, match="there is no run 'link'"):
        shelf.run("link")


def test_links_within_the_folder_are(shelf, tmp_path):
    (tmp_path / "runs/best").symlink_to(tmp_path / "runs/first")
    assert shelf.run("best").last_step == 1


def test_the_folder_of_a_run_is_that_run_alone(tmp_path, make_run):
    make_run(tmp_path / "first", steps=2)
    make_run(tmp_path / "second", steps=2)
    assert RunShelf(tmp_path / "second").names() == ("second",)


def test_a_run_that_was_replaced_is_opened_again(shelf, tmp_path, make_run):
    assert shelf.run("first").last_step == 1
    make_run(tmp_path / "other", steps=4)
    (tmp_path / "other/rank0.db").replace(tmp_path / "runs/first/rank0.db")
    assert shelf.run("first").last_step == 3


def test_a_run_that_was_removed_is_no_more(shelf, tmp_path):
    shelf.run("first")
    shutil.rmtree(tmp_path / "runs/first")
    with pytest.raises(StoreError, match="there is no run 'first'; there are none"):
        shelf.run("first")


def test_a_folder_that_is_not_there_yet_has_no_runs(tmp_path):
    assert RunShelf(tmp_path / "later").names() == ()
