"""What all tests share: names that every doctest may use, and a fixed random stream."""

import signal

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, nn=nn)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# a shell that runs tests in the background has the signal ignored, and programs that tests interrupt would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
