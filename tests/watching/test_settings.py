"""Settings of any kind become plain data."""

import argparse
import dataclasses
import enum
import json
import math
from collections import OrderedDict, UserDict, deque, namedtuple
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.watching.settings import LONGEST_TEXT, plain, settings


class Mode(enum.Enum):
    FAST = 1
    EXACT = "exact"


@dataclasses.dataclass
class Data:
    batch: int = 8
    crop: tuple = (32, 32)


class Pydantic:
    """Has its fields where models of pydantic have them."""

    model_fields = {"lr": float}  # noqa: RUF012

    def __init__(self):
        self.lr, self.secret = 0.5, 1


class Attrs:
    """The same for classes of attrs."""

    __attrs_attrs__ = (SimpleNamespace(name="lr"),)
    __slots__ = ("lr",)

    def __init__(self):
        self.lr = 0.5


class Own:
    def __init__(self):
        self.lr = 0.5


class Names:
    """Settings as some write them."""

    lr = 0.5
    _hidden = 1


class WithDictionary:
    def to_dict(self):
        return {"lr": 0.5}


class WithoutDictionary:
    """One that is not complete yet, as some configurations are."""

    def __init__(self):
        self.lr = 0.5

    def to_dict(self):
        raise ValueError("momentum is missing")


Pair = namedtuple("Pair", "lr momentum")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"lr": 0.1, 3: [1, 2.5, None, True, "a"]}, {"lr": 0.1, "3": [1, 2.5, None, True, "a"]}),
        (argparse.Namespace(lr=0.5, tags=["a"]), {"lr": 0.5, "tags": ["a"]}),
        (SimpleNamespace(lr=0.5), {"lr": 0.5}),
        (Data(), {"batch": 8, "crop": [32, 32]}),
        (Pair(0.5, 0.9), {"lr": 0.5, "momentum": 0.9}),
        (OrderedDict(lr=0.5), {"lr": 0.5}),
        (UserDict(lr=0.5), {"lr": 0.5}),
        (MappingProxyType({"lr": 0.5}), {"lr": 0.5}),
        (Pydantic(), {"lr": 0.5}),
        (Attrs(), {"lr": 0.5}),
        (Own(), {"lr": 0.5}),
        (Names, {"lr": 0.5}),
        (WithDictionary(), {"lr": 0.5}),
        (WithoutDictionary(), {"lr": 0.5}),
        ("base.yaml", {"config": "base.yaml"}),
        (["a", 1], {"config": ["a", 1]}),
        (5, {"config": 5}),
        (
            {"data": Data(), "inner": {"x": argparse.Namespace(y=1)}},
            {"data": {"batch": 8, "crop": [32, 32]}, "inner": {"x": {"y": 1}}},
        ),
    ],
)
def test_named_values_of_any_kind(config, expected):
    assert settings(config) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Path("runs/first"), "runs/first"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([1, 2]), [1, 2]),
        (nn.Parameter(torch.ones(2)), [1.0, 1.0]),
        (torch.zeros(100, 3), "Tensor of shape (100, 3)"),
        (np.zeros(1000), "ndarray of shape (1000,)"),
        (torch.zeros(3, device="meta"), "torch.Tensor"),
        (torch.float16, "torch.float16"),
        (torch.device("cuda:1"), "cuda:1"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.array([1.0, math.inf]), [1.0, "inf"]),
        (Mode.FAST, "FAST"),
        (Mode.EXACT, "exact"),
        (Decimal("0.1"), "0.1"),
        (date(2024, 2, 29), "2024-02-29"),
        (1 + 2j, "(1+2j)"),
        (b"raw", "b'raw'"),
        ({3}, [3]),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (nn.ReLU, "torch.nn.modules.activation.ReLU"),
        (Data, f"{__name__}.Data"),
        (Attrs, f"{__name__}.Attrs"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (nn.ReLU(), "ReLU()"),
        (object(), "builtins.object"),
        ("x" * 5000, "x" * 5000),
        (nn.Sequential(*[nn.Linear(1, 1)] * 100), str(nn.Sequential(*[nn.Linear(1, 1)] * 100))[:LONGEST_TEXT]),
    ],
)
def test_values_of_any_kind(value, expected):
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


class Refuses:
    """Cannot even be turned into a text."""

    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


class Incomplete(dict):
    """As some libraries do for settings that were never given."""

    def __getitem__(self, name):
        if name == "missing":
            raise KeyError(name)
        return super().__getitem__(name)


def test_what_refuses_to_be_read_is_named_by_its_kind():
    assert settings({"a": Refuses(), "b": 1}) == {"a": f"{__name__}.Refuses", "b": 1}
    assert settings(Incomplete(missing="???", lr=0.5)) == {"missing": "missing", "lr": 0.5}


def test_what_contains_itself_ends():
    inner = {"lr": 0.5}
    inner["self"] = inner
    found = settings(inner)
    assert found["self"]["lr"] == 0.5
    json.dumps(found, allow_nan=False)
