"""Defaults that a program may set before it uses the package."""

from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
