"""The columns of a row: what one pass over a tensor leaves behind.

A row holds raw sums, not finished numbers: sums can be added over micro-batches, parts of a tensor and processes. The
columns are defined only here; kernels, preprocessors, the merge over processes and the tests read this.
"""

from collections.abc import Iterable
from enum import Enum, IntEnum

EVERYWHERE, OF_OUTPUTS = "all", "outputs"
RATED = "where rates are wanted: Request(rates=...)"
COMPARED = "where tensors are compared: Request(correlation=...)"
ON_REQUEST = "where it is wanted: Request(columns=...)"
OF_UPDATES = "updates, where it is wanted: Request(columns=...)"
"""Which rows have a column. The last two kinds cost time and are filled only on request.

All kernels fill all columns except those of updates, which are known before the step and added by the buffers.
"""


class Merge(Enum):
    """How a column is merged over two parts of one tensor."""

    SUM = "the sum of both"
    LARGEST = "the larger one"
    SMALLEST = "the smaller one"


class Column(IntEnum):
    """The place of a number in a row.

    Attributes:
        holds: what it is.
        of: which rows have it; in others it is 0.
        power: the power of the row's unit that the number carries. A product with another row has one unit of each.
        merge: how the columns of two parts become one.
    """

    holds: str
    of: str
    power: int
    merge: Merge

    def __new__(cls, holds: str, of: str, power: int = 0, merge: Merge = Merge.SUM) -> "Column":
        """Number the columns in the order of their declarations."""
        column = int.__new__(cls, len(cls.__members__))
        column._value_ = len(cls.__members__)
        column.holds, column.of, column.power, column.merge = holds, of, power, merge
        return column

    SQUARES = "sum of the squares", EVERYWHERE, 2
    DOT = "sum of the products with the previous tensor", COMPARED, 2
    UNIT = (
        "the scale: 1, or a factor that keeps squares of huge or tiny numbers within float64",
        EVERYWHERE,
        1,
        Merge.LARGEST,
    )
    FOLLOWS = "1 if there was a previous tensor to compare with", COMPARED, 0, Merge.SMALLEST
    NORMS = "sum of the norms of single samples", OF_OUTPUTS
    BATCH = "number of samples", OF_OUTPUTS
    ACTIVE = "how many elements are larger than eps in absolute value", RATED
    DEAD = "how many channels have no active element", RATED
    CHANNELS = "number of channels", RATED
    SIZE = "number of elements", EVERYWHERE
    NONFINITE = "how many elements are NaN or infinite; NaN if not known", EVERYWHERE
    LARGEST = "largest absolute value of a finite element; NaN if not known", ON_REQUEST, 0, Merge.LARGEST
    WEIGHT = "sum of the squares of the parameter before the step, unscaled", OF_UPDATES


WIDTH = len(Column)
"""Numbers in a row."""

ALL, NOTHING_MORE = -1, 0
"""Bit masks of the columns wanted besides the usual ones: all, or none."""


def bits(columns: Iterable[Column]) -> int:
    """These columns as bits.

    >>> has(bits([Column.LARGEST]), Column.LARGEST), has(NOTHING_MORE, Column.LARGEST), has(ALL, Column.LARGEST)
    (True, False, True)
    """
    return sum(1 << column for column in set(columns))


def has(wanted: int, column: Column) -> bool:
    """Whether a column is wanted."""
    return bool(wanted >> column & 1)


SQUARES, DOT, UNIT, FOLLOWS, NORMS, BATCH, ACTIVE, DEAD, CHANNELS, SIZE, NONFINITE, LARGEST, WEIGHT = Column
