import anyio
import pytest

from monitorch.dashboard import live
from monitorch.dashboard.run_folder import RunFolder


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """What a page hears that follows some runs, while something happens after each look."""
    monkeypatch.setattr(live, "POLL_SECONDS", 0.0)

    def follow(names, *happenings):
        run_folder, todo = RunFolder(tmp_path), list(happenings)

        async def listen():
            stream = live.ticks(run_folder, names, lambda: not todo)
            found = [await anext(stream)]
            async for piece in stream:
                found.append(piece)
                todo.pop(0)()
            return found

        monkeypatch.setattr(live, "QUIET_POLLS", 3)
        found = anyio.run(listen)
        run_folder.close()
        return found

    return follow


def test_a_quiet_stream_says_that_it_lives(heard):
    assert heard([], *[lambda: None] * 2) == [live.COMMENT] * 3


def test_runs_that_come_go_and_grow_are_ticks(heard, tmp_path, new_run, sample):
    writer = new_run(tmp_path / "first")

    def grow():
        sample.fill(writer, [24])
        writer.flush()

    ticks = heard(["first", "missing"], grow, lambda: new_run(tmp_path / "second").close(), lambda: None)
    writer.close()
    assert ticks[0] == live.COMMENT
    assert ticks.count(live.TICK) >= 2
