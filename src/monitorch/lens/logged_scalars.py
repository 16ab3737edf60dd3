"""Numbers that the user logs by name."""

from ..numerical import Accumulator
from ..preprocessor.run_numbers import RunNumbers
from .pushed_lens import PushedLens
from .views import NamedLines


class LoggedScalars(PushedLens):
    """Shows numbers that were logged without being declared; each inspector has one."""

    def __init__(self) -> None:
        self.numbers = RunNumbers()
        super().__init__([self.numbers], [NamedLines("Logged", self._read_logged, ("mean",), (), apart=True)])

    def _read_logged(self, step: int | None) -> dict[str, Accumulator]:
        return self._at(self.numbers, step)
