"""Series of facts: means over the steps in which they were known, and last numbers."""

import math

import torch

from monitorch.engine.parameter_facts import Facts
from monitorch.engine.ranks import merged
from monitorch.preprocessor.parameter_facts import FactSeries

NAN = math.nan


def process(series, name, *facts):
    """All facts about a parameter after one step."""
    for fact, number in zip(Facts._fields, facts, strict=True):
        series.process_fact(fact, [name], number[None] if isinstance(number, torch.Tensor) else [number])


def test_what_is_not_known_is_no_sample():
    series = FactSeries()
    for empty, changed in ((1.0, NAN), (torch.tensor(0.0), 1.0), (1.0, torch.tensor(NAN)), (NAN, 0.0)):
        process(series, "weight", empty, changed, 5.0, 0.1, 0.0, 0.0)
    assert series.means("was_empty") == {"weight": {"mean": 2 / 3}}
    assert series.means("changed") == {"weight": {"mean": 0.5}}


def test_the_last_number_counts_and_is_nothing_if_it_is_not_known():
    series = FactSeries()
    for checksum, rate in ((3.0, 0.1), (7.0, NAN)):
        process(series, "weight", 1.0, 1.0, checksum, rate, 0.0, 0.0)
    process(series, "bias", 1.0, 1.0, NAN, 0.5, 0.0, 0.0)
    assert series.last("checksum") == {"weight": {"last": 7.0}}
    assert series.last("rate") == {"bias": {"last": 0.5}}


def test_processes_are_put_together():
    ranks = [FactSeries() for _ in range(2)]
    for rank, changed in zip(ranks, (0.0, 1.0), strict=True):
        process(rank, "weight", 1.0, changed, 9.0, 0.1, 2.0, 1.0)
    ranks[0].merge_ranks(merged({number: rank.payload() for number, rank in enumerate(ranks)}))
    assert ranks[0].means("changed") == {"weight": {"mean": 0.5}}
    assert ranks[0].last("checksum") == {"weight": {"last": 9.0}}
    assert ranks[0].last("group") == {"weight": {"last": 2.0}}
