"""Merges the orders in which layers arrive into one."""

from collections.abc import Iterable, Sequence


def merge_order(known: Sequence[str], arriving: Iterable[str]) -> list[str]:
    """Add new names to an order, each before the known name that it arrived before, else at the end.

    >>> merge_order(["relu1", "relu2"], ["linear1", "relu1", "linear2", "relu2", "linear3"])
    ['linear1', 'relu1', 'linear2', 'relu2', 'linear3']
    """
    merged, names = list(known), list(arriving)
    if set(merged).issuperset(names):  # the usual case after the first ticks; searching long lists is slow
        return merged
    place = len(merged)
    for name in reversed(names):
        if name in merged:
            place = merged.index(name)
        else:
            merged.insert(place, name)
    return merged
