import math
import sys
from collections import Counter

import pytest
import torch

from monitorch.cli.demo_data import encode, python_help, random_windows
from monitorch.errors import MonitorchError


def test_text_survives_encoding():
    text = "def f(x):\n    return “x”"
    corpus = encode(text)
    assert "".join(corpus.vocabulary[number] for number in corpus.ids) == text
    assert len(corpus.vocabulary) == len(set(text))


def test_entropy_is_that_of_single_characters():
    text = "to be or not to be"
    shares = [count / len(text) for count in Counter(text).values()]
    assert encode(text).entropy == pytest.approx(-sum(share * math.log(share) for share in shares), rel=1e-6)


def test_validation_text_is_held_out():
    corpus = encode("abcdefghijklmnopqrst")
    assert corpus.validation.tolist() == [0, 1]
    assert corpus.training.tolist() == list(range(2, 20))


def test_help_of_python_is_long_enough_to_learn_from():
    corpus = python_help()
    assert len(corpus.ids) > 200_000
    assert 60 < len(corpus.vocabulary) < 400


def test_python_without_its_help_texts(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(MonitorchError, match="install its module pydoc_data"):
        python_help()


def test_windows_are_pieces_of_the_text_and_what_follows():
    text, following = random_windows(torch.arange(50), count=400, length=8)
    assert text.shape == following.shape == (400, 8)
    assert torch.equal(text - text[:, :1], torch.arange(8).expand(400, 8))
    assert torch.equal(following, text + 1)
    assert (text.min(), following.max()) == (0, 49)


def test_windows_follow_the_seed():
    def draw(seed):
        torch.manual_seed(seed)
        return random_windows(torch.arange(1000), count=4, length=8)[0]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
