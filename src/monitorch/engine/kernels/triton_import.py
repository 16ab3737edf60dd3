"""Triton if it is installed, else a minimal stand-in, so that the kernels can be imported."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN201

__all__ = ["AVAILABLE", "constant", "jit", "tl", "triton"]

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

AVAILABLE = triton is not None
"""Whether kernels can be compiled at all."""


def jit(function=None, **options):
    """``triton.jit``; without Triton, returns the function as it is."""
    if function is None:
        return lambda inner: jit(inner, **options)
    return triton.jit(function, **options) if AVAILABLE else function


def constant(value):
    """A global that kernels may read."""
    return tl.constexpr(value) if AVAILABLE else value
