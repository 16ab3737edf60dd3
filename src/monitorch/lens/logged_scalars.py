"""Whatever the user logs by name."""

from ..numerical import Accumulator
from .pushed_lens import PushedLens
from .views import NamedLines


class LoggedScalars(PushedLens):
    """Shows pushed numbers that nobody declared; an inspector makes one when something is logged."""

    def __init__(self) -> None:
        super().__init__([], [NamedLines("Logged", self._read_logged, ("mean",), ())])

    def _read_logged(self) -> dict[str, Accumulator]:
        return {} if self._call is None else self._pushed(self._call.logged)
