"""The measuring engine: the hooks that all lenses share, the kernels behind them, and the rows of sums they write."""

import re

import torch

from ..errors import OldTorchError

OLDEST_TORCH = "2.11"
"""The oldest release that was tested: the engine uses private names of torch, which each release may change."""


def check_torch(version: str) -> None:
    """Refuse a torch that is too old now, rather than in the middle of training.

    >>> check_torch("2.13.0+cpu")
    """
    found, oldest = (tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (version, OLDEST_TORCH))
    if found < oldest:
        raise OldTorchError(
            f"monitorch needs torch {OLDEST_TORCH} or newer, and this is torch {version}: "
            f"pip install --upgrade 'torch>={OLDEST_TORCH}'"
        )


check_torch(torch.__version__)
