"""Single samples in a run: what is put in comes out, and what is wrong is refused."""

import numpy as np
import pytest

from monitorch.errors import MonitorchWarning
from monitorch.store import Writer, open_run
from monitorch.store.samples import SampleArrays, pack, unpack


@pytest.fixture(params=["wal", "truncate", "log"])
def journal(request):
    """All kinds of files."""
    return request.param


def samples(steps, places=None, values=None):
    steps = np.asarray(steps, np.int64)
    places = np.zeros(len(steps), np.int64) if places is None else np.asarray(places, np.int64)
    return SampleArrays(steps, places, steps.astype(float) if values is None else np.asarray(values, float))


def put(writer, new, *, signal="norm", of="one", first=0, names=("a",), replaces=False):
    return writer.put_samples(signal, new, writer=of, first=first, names=names, replaces=replaces)


def stored(folder):
    """All samples, as plain lists: by signal the names, steps, places and values of each writer."""
    with open_run(folder) as run:
        return {
            signal: [(names, *(part.tolist() for part in found)) for names, found in parts]
            for signal, parts in run.samples().items()
        }


def test_what_is_put_comes_out_while_the_run_grows_and_after_it(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        assert put(writer, samples([1, 1, 2], [0, 1, 0], [0.5, np.nan, np.inf]), names=("a", "é"))
        assert put(writer, samples([9, 3], [2, 1], [-1.0, 1e300]), first=2, names=("c",))
        assert put(writer, samples([4]), signal="loss", names=("training",))
        writer.flush()
        growing = stored(tmp_path / "run")
    expected = {
        "norm": [(("a", "é", "c"), [1, 1, 2, 9, 3], [0, 1, 0, 2, 1], [0.5, np.nan, np.inf, -1.0, np.inf])],
        "loss": [(("training",), [4], [0], [4.0])],
    }
    for found in (growing, stored(tmp_path / "run")):
        np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("signal", ["norm", "loss", "none"])
def test_one_signal_can_be_read_alone(tmp_path, journal, signal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, samples([1, 2]), names=("a",))
        put(writer, samples([4]), signal="loss", names=("training",))
    with open_run(tmp_path / "run") as run:
        alone = {name: [(names, part.steps.tolist()) for names, part in of] for name, of in run.samples(signal).items()}
    expected = {"norm": [(("a",), [1, 2])], "loss": [(("training",), [4])]}
    assert alone == {name: parts for name, parts in expected.items() if name == signal}


def test_a_run_without_samples_has_none(tmp_path, journal, one):
    with Writer(tmp_path / "run", journal=journal) as writer:
        one(writer, 1)
    assert stored(tmp_path / "run") == {}


def test_new_ones_may_replace_all_that_the_same_writer_had_of_a_signal(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, samples([1, 2, 3]))
        put(writer, samples([1]), signal="loss")
        put(writer, samples([7]), of="other")
        put(writer, samples([1, 3, 4], [0, 0, 1]), first=1, names=("b",), replaces=True)
        put(writer, samples([5]), first=2, names=())
    assert stored(tmp_path / "run") == {
        "norm": [(("a",), [7], [0], [7.0]), (("a", "b"), [1, 3, 4, 5], [0, 0, 1, 0], [1.0, 3.0, 4.0, 5.0])],
        "loss": [(("a",), [1], [0], [1.0])],
    }


def test_writers_count_their_own_names(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, samples([1, 2], [0, 1]), names=("a", "b"))
        put(writer, samples([3, 4], [0, 1]), of="other", names=("b", "c"))
        put(writer, samples([5]), names=(), first=2)
    assert stored(tmp_path / "run") == {
        "norm": [
            (("a", "b"), [1, 2, 5], [0, 1, 0], [1.0, 2.0, 5.0]),
            (("b", "c"), [3, 4], [0, 1], [3.0, 4.0]),
        ]
    }


def test_a_run_that_goes_on_hides_later_steps(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, samples(range(1, 21)))
    with Writer(tmp_path / "run", resume=True, resume_step=10, journal=journal) as writer:
        put(writer, samples([11, 12]), of="second")
        writer.resume_from(11)
        put(writer, samples([12, 13], values=[0.5, 0.5]), of="third")
    found = stored(tmp_path / "run")["norm"]
    assert [steps for _, steps, _, _ in found] == [list(range(1, 11)), [11], [12, 13]]


def test_places_without_a_name_are_left_out(tmp_path):
    with Writer(tmp_path / "run") as writer:
        put(writer, samples([1, 2], [0, 5]))
    assert stored(tmp_path / "run") == {"norm": [(("a",), [1], [0], [1.0])]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"signal": None},
        {"of": 3},
        {"first": "x"},
        {"names": [None]},
        {"names": 5},
        {"new": None},
        {"new": (1, 2)},
        {"new": SampleArrays(np.array([1]), np.array([0]), np.array([1.0, 2.0]))},
        {"new": SampleArrays(np.array([1, 2]), np.array([0]), np.array([1.0]))},
        {"new": SampleArrays(np.array(["a"]), np.array([0]), np.array([1.0]))},
        {"new": SampleArrays(np.array([1]), np.array([-1]), np.array([1.0]))},
    ],
)
def test_wrong_samples_are_refused_with_one_warning_and_the_rest_is_stored(tmp_path, wrong):
    with Writer(tmp_path / "run") as writer:
        put(writer, samples([1]))
        with pytest.warns(MonitorchWarning, match=r"Writer\.put_samples did not store its arguments"):
            assert not put(writer, **{"new": samples([2]), **wrong})
        assert not put(writer, **{"new": samples([2]), **wrong})
        put(writer, samples([3]), first=1, names=())
    assert stored(tmp_path / "run") == {"norm": [(("a",), [1, 3], [0, 0], [1.0, 3.0])]}


def test_a_closed_writer_takes_none(tmp_path):
    writer = Writer(tmp_path / "run")
    writer.close()
    with pytest.warns(MonitorchWarning, match="closed"):
        assert not put(writer, samples([1]))
    assert stored(tmp_path / "run") == {}


def test_a_run_that_is_too_large_loses_old_samples_and_stays_readable(tmp_path):
    stream = np.random.default_rng(0)
    with Writer(tmp_path / "run", max_size=2**20) as writer:
        for step in range(0, 400_000, 4000):
            put(writer, samples(range(step, step + 4000), values=stream.normal(size=4000)), names=("a",))
            writer.flush()
    assert (tmp_path / "run" / "rank0.db").stat().st_size < 1.5 * 2**20
    ((_, steps, _, _),) = stored(tmp_path / "run")["norm"]
    assert steps == list(range(steps[0], 400_000))
    assert 0 < steps[0] < 300_000


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_packed_samples_are_small_and_come_out_again(count):
    known = samples(np.arange(count) * 10, np.arange(count) % 7, np.arange(count) % 5)
    data = pack(known)
    assert len(data) < 100 + 8 * count
    for old, new in zip(known, unpack(data), strict=True):
        assert new.tolist() == old.tolist()
