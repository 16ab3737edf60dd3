"""The result of one pass over a tensor: a row of raw sums, from which all shown numbers are computed on the CPU.

Sums can be added over micro-batches, shards and ranks where finished numbers cannot.
"""

SQUARES = 0
"""Sum of the squares of ``x / UNIT``."""
DOT = 1
"""Sum of products with the tensor before, each in its own unit."""
UNIT = 2
"""The unit of lengths: 1, or a value that keeps the squares of huge or tiny numbers inside float64."""
FOLLOWS = 3
"""1 if DOT compares with the tensor before, 0 if there was none."""
NORMS = 4
"""Sum over the batch of the norms of single samples."""
BATCH = 5
"""Number of samples in the batch."""
ACTIVE = 6
"""How many numbers are larger than eps in absolute value."""
DEAD = 7
"""How many channels have no active number."""
CHANNELS = 8
"""Number of channels."""
SIZE = 9
"""Number of elements."""
NONFINITE = 10
"""How many elements are NaN or infinite."""
LARGEST = 11
"""Largest absolute value among the finite elements."""

WIDTH = 12
