"""What all tests share: names that every doctest may use, and a fixed random stream."""

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, nn=nn)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
