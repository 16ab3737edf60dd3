"""Numbers that the user pushes."""

from typing import Any

from ..numerical.accumulator import new_accumulator
from ..numerical.running_mean_var import RunningMeanVar
from .accumulating import AccumulatingPreprocessor, Payload


class ExplicitCall(AccumulatingPreprocessor):
    """Keeps pushed numbers by name; the first push of a name decides how they are kept.

    >>> call = ExplicitCall("train_loss", "val_loss")
    >>> call.push_loss(0.5, train=True)
    >>> call.push_memory("accuracy", 0.9)
    >>> call.value["train_loss"].mean, call.value["accuracy"]
    (0.5, [0.9])
    """

    def __init__(self, train_loss_str: str, non_train_loss_str: str) -> None:
        super().__init__(inplace=True)
        self.train_loss_str, self.non_train_loss_str = train_loss_str, non_train_loss_str
        self.logged: dict[str, None] = {}
        """Names of numbers that nobody declared, in the order they came."""

    @property
    def state(self) -> dict[str, Any]:
        """The accumulators by name; the same as ``value``."""
        return self.value

    def push_running(self, name: str, value: Any) -> None:
        """Add a number of which only moments are kept."""
        self._push(name, value, inplace=True)

    def push_memory(self, name: str, value: Any) -> None:
        """Add a number that is kept as it is."""
        self._push(name, value, inplace=False)

    def push_loss(self, value: Any, *, train: bool, running: bool = True) -> None:
        """Add a loss under the name that fits."""
        name = self.train_loss_str if train else self.non_train_loss_str
        self._push(name, value, inplace=running)
        self._record_in_step(name, value)

    def log(self, name: str, value: Any) -> None:
        """Add a number that is shown without being declared."""
        self.logged[name] = None
        self.push_running(name, value)

    def payload(self) -> Payload:
        """Also the names of what was logged."""
        return super().payload()._replace(logged=tuple(self.logged))

    def merge_ranks(self, loads: dict[int, Payload]) -> None:
        """Know what was logged on any rank, too."""
        super().merge_ranks(loads)
        self.logged |= dict.fromkeys(name for load in loads.values() for name in load.logged)

    def state_dict(self) -> dict[str, Any]:
        """Also the names of what was logged."""
        return {**super().state_dict(), "logged": list(self.logged)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self.logged = dict.fromkeys(state["logged"])

    def _push(self, name: str, value: Any, inplace: bool) -> None:
        accumulator = self._values.get(name)
        if accumulator is None:
            accumulator = new_accumulator(inplace)
        accumulator.append(value)
        self._values[name] = accumulator

    def _new_value(self, like: Any = None) -> Any:
        return new_accumulator(inplace=isinstance(like, RunningMeanVar))
