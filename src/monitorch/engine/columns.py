"""The columns of a row: what one pass over a tensor leaves behind.

A row holds raw sums, not finished numbers: sums can be added over micro-batches, parts of a tensor and processes. This
is the only place that says which columns there are. Kernels, preprocessors, the merging of processes and the tests read
it.
"""

from collections.abc import Iterable
from enum import Enum, IntEnum

EVERYWHERE, OF_OUTPUTS = "all", "outputs"
RATED = "where rates are wanted: Request(rates=...)"
COMPARED = "where tensors are compared: Request(correlation=...)"
ON_REQUEST = "where it is wanted: Request(columns=...)"
OF_UPDATES = "updates, where it is wanted: Request(columns=...)"
"""Which rows have a column; those of the last two kinds cost time and are filled only for those who ask for them.

All kernels fill all columns, except those of updates: these are known before the step, and the buffers add them.
"""


class Merge(Enum):
    """How a column of two parts of one tensor becomes that of both."""

    SUM = "the sum of both"
    LARGEST = "the larger one"
    SMALLEST = "the smaller one"


class Column(IntEnum):
    """The place of a number in a row.

    Attributes:
        holds: what it is.
        of: which rows have it; in others it is 0.
        power: it is counted in this power of the unit of its row. A product with another row has one unit of each.
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
    DOT = "sum of the products with the tensor before", COMPARED, 2
    UNIT = "the unit: 1, or what keeps squares of huge or tiny numbers inside float64", EVERYWHERE, 1, Merge.LARGEST
    FOLLOWS = "1 if there was a tensor before to compare with", COMPARED, 0, Merge.SMALLEST
    NORMS = "sum of the norms of single samples", OF_OUTPUTS
    BATCH = "number of samples", OF_OUTPUTS
    ACTIVE = "how many elements are larger than eps in absolute value", RATED
    DEAD = "how many channels have no active element", RATED
    CHANNELS = "number of channels", RATED
    SIZE = "number of elements", EVERYWHERE
    NONFINITE = "how many elements are NaN or infinite; NaN if not known", EVERYWHERE
    LARGEST = "largest absolute value of a finite element; NaN if not known", ON_REQUEST, 0, Merge.LARGEST
    WEIGHT = "sum of the squares of the parameter before the step, in no unit", OF_UPDATES


WIDTH = len(Column)
"""Numbers in a row."""

ALL, NOTHING_MORE = -1, 0
"""Which columns are wanted beside those that every row has, as bits: all of them, or none."""


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
