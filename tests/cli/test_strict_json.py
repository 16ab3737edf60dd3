import json
from pathlib import Path

import numpy as np
import pytest

from monitorch.cli.strict_json import SCHEMA, answer, plain, print_answer
from monitorch.store import Layer, is_absent
from monitorch.store.tiles import absent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), 0.1),
        (np.float32(np.nan), "nan"),
        (float("-inf"), "-inf"),
        (np.float32(np.inf), "inf"),
        (absent([2]), [None, None]),
        ({"config": {"lr": float("nan")}}, {"config": {"lr": "nan"}}),
        ((1, True, None, "x"), [1, True, None, "x"]),
        (np.int64(3), 3),
        (Layer("fc", "Linear", 9), {"name": "fc", "kind": "Linear", "parameters": 9}),
        (Path("runs"), "runs"),
    ],
)
def test_value(value, expected):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text, parse_constant=refuse) == expected


def test_numbers_come_back_as_the_same_float32():
    bits = np.random.default_rng(0).integers(0, 2**32, 2000, np.uint32)
    numbers = bits.view(np.float32)
    back = np.array([float(number) for number in plain(numbers)], np.float32)
    finite = np.isfinite(numbers)
    assert np.array_equal(back[finite], numbers[finite])
    assert np.array_equal(np.isnan(back), np.isnan(numbers))
    assert not is_absent(numbers).any()


def test_an_answer_says_first_which_schema_it_follows(capsys):
    print_answer(loss=np.float32(np.nan), schema_of="x")
    text = capsys.readouterr().out
    assert list(json.loads(text).items()) == [("schema", SCHEMA), ("loss", "nan"), ("schema_of", "x")]
    assert json.loads(text) == answer(loss=float("nan"), schema_of="x")


def test_names_are_escaped(capsys):
    print_answer(name="\x1b[31m\udcff")
    assert r'"\u001b[31m\udcff"' in capsys.readouterr().out
