"""Meeting the other processes without waiting long for those who do not come; those who do are in test_ranks.py."""

import pickle

import numpy as np
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from monitorch.engine import meeting
from monitorch.engine.meeting import Meeting, agree
from monitorch.engine.reductions import How, gather
from monitorch.errors import ExchangeError

MINE = "mine"


def plan(parcel, seat, is_partial):
    """Who has which parcel."""
    assert is_partial
    return (yield from gather(parcel, seat))


def plan_of_all(parcel, seat, is_partial):
    assert not is_partial
    return (yield from gather(parcel, seat))


def tcp(_):
    return dist.TCPStore("127.0.0.1", 0, 1, is_master=True)


def prefixed(_):
    return dist.PrefixStore("of somebody else", dist.HashStore())


def file(folder):
    return dist.FileStore(str(folder / "store"), 1)


def memory(_):
    return dist.HashStore()


@pytest.fixture(params=[tcp, prefixed, file, memory], ids=lambda kind: kind.__name__)
def store(request, tmp_path, monkeypatch):
    """The store of a default group with another rank, which never comes."""
    monkeypatch.setattr(meeting, "PATIENCE", 0.01)
    store = request.param(tmp_path)
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    yield store
    dist.destroy_process_group()


def test_who_does_not_come_is_waited_for_once(store, monkeypatch):
    lonely, waits = Meeting("Net"), []
    with pytest.raises(ExchangeError, match=r"^rank 1 did not take part within 0\.01 s$"):
        lonely.exchange(MINE, plan, step=10)
    assert not lonely.is_over
    monkeypatch.setattr(meeting.time, "sleep", waits.append)
    for _ in range(2):
        with pytest.raises(ExchangeError, match="rank 1 did not take part within 0 s"):
            lonely.exchange(MINE, plan, step=20)
        assert lonely.is_over
    assert waits == []


def test_a_meeting_that_begins_where_another_one_was_left_is_a_new_one(store):
    for _ in range(3):
        lonely = Meeting("Net")
        with pytest.raises(ExchangeError, match="did not take part"):
            lonely.meet(step=0)
        lonely.leave()
        lonely.leave()


def test_patience_may_be_chosen(store):
    with pytest.raises(ExchangeError, match=r"within 0\.02 s"):
        Meeting("Net").meet(step=0, patience=0.02)


def test_processes_agree_on_what_the_first_one_decides(store, monkeypatch):
    asked = []

    def decide(topic, answer):
        return agree(topic, lambda: asked.append(answer) or answer)

    meeting._asked.clear()
    assert [decide("name", "first"), decide("name", "second"), decide("place", "here")] == ["first", "second", "here"]
    meeting._asked.clear()
    monkeypatch.setattr(dist, "get_rank", lambda: 1)  # as in a process that comes later
    assert [decide("name", "third"), decide("name", "fourth"), decide("place", "there")] == ["first", "second", "here"]
    assert asked == ["first", "second", "here"]


def test_who_has_to_decide_and_does_not_is_not_waited_for_for_ever(store, monkeypatch):
    def fail():
        raise OSError("the disk is full")

    meeting._asked.clear()
    with pytest.raises(OSError, match="full"):
        agree("name", fail)
    meeting._asked.clear()
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(meeting, "LONG_PATIENCE", 0.01)
    assert agree("name", lambda: "mine") == "mine"


def test_alone_everybody_agrees_with_itself():
    assert agree("anything", lambda: "mine") == "mine"


def test_a_store_that_cannot_do_it_is_told_as_the_reason():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        alone = Meeting("Net")
        with pytest.raises(ExchangeError, match="the other processes could not be reached: "):
            alone.exchange(MINE, plan, step=0)
        assert alone.is_over
    finally:
        dist.destroy_process_group()


def test_a_copy_has_met_nobody(store):
    lonely = Meeting("Net")
    with pytest.raises(ExchangeError):
        lonely.meet(step=0)
    copy = pickle.loads(pickle.dumps(lonely))
    with pytest.raises(ExchangeError, match="did not take part"):
        copy.meet(step=0)


def test_numbers_are_kept_if_the_others_leave_once_all_have_them(store, monkeypatch):
    class Group:
        """Gives the numbers of this process back; then the others are gone."""

        calls = 0

        def allreduce(self, tensors, options):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("connection closed by peer")
            return self

        def wait(self):
            pass

    met = Meeting("Net")
    met._join()
    met._group = group = Group()
    monkeypatch.setattr(meeting, "run", lambda plan, reduce: reduce(np.ones(2), How.SUM).tolist())
    assert met.exchange(MINE, plan_of_all, step=1) == [1.0, 1.0]
    assert group.calls == 2  # a last one, so that nobody leaves while another one reads
    with pytest.raises(ExchangeError, match="could not be reached: connection closed by peer"):
        met.exchange(MINE, plan_of_all, step=2)


def test_to_leave_before_a_first_meeting_needs_no_processes():
    unmet = Meeting("Net")
    unmet.leave()
    assert unmet.is_over


def test_whoever_shows_the_last_tick_takes_what_the_others_have_left(store, monkeypatch):
    monkeypatch.setattr(meeting, "LONG_PATIENCE", 0.01)
    lonely = Meeting("Net")
    assert not lonely.end(has_more=False, shows=True)  # nobody has said anything within its patience
    assert lonely.end(has_more=True, shows=True)
    assert lonely.exchange(MINE, plan, step=1) == {0: "mine"}
    lonely._store.set("end/1", pickle.dumps("its"))
    assert lonely.end(has_more=False, shows=True)
    assert lonely.exchange(MINE, plan, step=1) == {0: "mine", 1: "its"}
    lonely._store.set("end/1", meeting.NOTHING)
    assert not lonely.end(has_more=False, shows=True)


def test_whoever_shows_nothing_does_not_wait_at_the_end(store, monkeypatch):
    monkeypatch.setattr(meeting.time, "sleep", lambda _: pytest.fail("it waits"))
    helper = Meeting("Net")
    assert not helper.end(has_more=False, shows=False)
    assert helper._store.get("end/0") == meeting.NOTHING
    assert helper.end(has_more=True, shows=False)
    assert helper.exchange(MINE, plan, step=1) == {0: "mine"}
    assert pickle.loads(helper._store.get("end/0")) == "mine"


def test_a_store_that_is_gone_leaves_everybody_with_its_own_numbers():
    for shows in (True, False):
        assert Meeting("Net").end(has_more=True, shows=shows)
        assert not Meeting("Net").end(has_more=False, shows=shows)
