"""What all tests share: names that every doctest may use, and a fixed random stream."""

import gc
import signal
from collections.abc import Iterator

import hypothesis  # noqa: F401 - asks who holds its random streams, which frozen objects do not say
import pytest
import torch
from torch import nn

from monitorch import errors


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay to the end: collecting garbage need not look at them again and again."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect() -> None:
    """What earlier files have imported stays as well, and tests that collect garbage would look at all of it."""
    if len(gc.get_objects()) > 100_000:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, nn=nn)


# torch.manual_seed writes down where it was called from, for GPUs that may come; that takes longer than most tests
seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _seed() -> None:
    seed(0)


@pytest.fixture(autouse=True)
def unexpected_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Warnings of ours that nobody waits for; they are printed, not raised, so a test fails here that leaves any."""
    found: list[str] = []
    monkeypatch.setattr(errors, "_print", found.append, raising=False)
    yield found
    assert not found


# a shell that runs tests in the background has the signal ignored, and programs that tests interrupt would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
