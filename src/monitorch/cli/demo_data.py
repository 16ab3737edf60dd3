"""Text that comes with Python, as numbers to learn from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import MonitorchError

_HELD_OUT = 0.1


@dataclass(frozen=True)
class Corpus:
    """A text as indices into its vocabulary; the beginning of it is held out for validation."""

    vocabulary: str
    ids: Tensor

    @property
    def training(self) -> Tensor:
        """The part to learn from."""
        return self.ids[int(_HELD_OUT * len(self.ids)) :]

    @property
    def validation(self) -> Tensor:
        """The part that is held out."""
        return self.ids[: int(_HELD_OUT * len(self.ids))]

    @property
    def entropy(self) -> float:
        """The loss, in nats, of guessing by how often each character occurs."""
        return float(torch.special.entr(torch.bincount(self.ids) / len(self.ids)).sum())


def python_help() -> Corpus:
    """What ``help()`` knows about the Python language: some 400,000 characters."""
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise MonitorchError("this Python lacks the text of the demo: install its module pydoc_data") from error
    return encode("\n\n".join(text for _, text in sorted(topics.items())))


def encode(text: str) -> Corpus:
    """Number the characters in the order of their code points.

    >>> encode("banana").ids.tolist()
    [1, 0, 2, 0, 2, 0]
    """
    vocabulary = "".join(sorted(set(text)))
    index = {character: number for number, character in enumerate(vocabulary)}
    return Corpus(vocabulary, torch.tensor([index[character] for character in text]))


def random_windows(ids: Tensor, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Random pieces of a text, and the same pieces one character later, as targets."""
    starts = torch.randint(len(ids) - length, (count, 1))
    windows = ids[starts + torch.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]
