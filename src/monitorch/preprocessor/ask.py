"""What a preprocessor asks gatherers to measure, so that several preprocessors share one pass over a tensor."""

from collections.abc import Callable
from dataclasses import dataclass

ALL_PASSES = frozenset(range(4))


@dataclass(frozen=True)
class Ask:
    """One request; requests that do not contradict each other are served by one pass.

    Attributes:
        output_index: which part of an output to measure.
        rates: count active numbers: the largest value that counts as zero, and where the channels of a layer are.
        correlation: compare with the tensor before: ``"exact"``, ``"sketch"`` or not at all.
        passes: which forward passes to measure.
        exact_death: with several processes, count a channel as dead only if it is active in none of them.
    """

    output_index: int | str | None = None
    rates: tuple[float, bool | Callable[[str], bool]] | None = None
    correlation: str | None = None
    passes: frozenset[int] = ALL_PASSES
    exact_death: bool = False

    def joins(self, other: "Ask") -> bool:
        """Whether one pass can serve both."""
        return (
            self.output_index == other.output_index
            and (not (self.rates and other.rates) or (self.rates, self.exact_death) == (other.rates, other.exact_death))
            and (self.correlation is None or other.correlation is None or self.correlation == other.correlation)
            and not ("sketch" in (self.correlation, other.correlation) and (self.rates or other.rates))
        )

    def __or__(self, other: "Ask") -> "Ask":
        rates, correlation = self.rates or other.rates, self.correlation or other.correlation
        exact_death = self.exact_death or other.exact_death
        return Ask(self.output_index, rates, correlation, self.passes | other.passes, exact_death)
