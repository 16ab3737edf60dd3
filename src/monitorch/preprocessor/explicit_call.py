"""Numbers that the user pushes."""

from typing import Any

from ..numerical.accumulator import new_accumulator
from ..numerical.running_mean_var import RunningMeanVar
from .accumulating import AccumulatingPreprocessor


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
        self._push(self.train_loss_str if train else self.non_train_loss_str, value, inplace=running)

    def _push(self, name: str, value: Any, inplace: bool) -> None:
        accumulator = self._values.get(name)
        if accumulator is None:
            accumulator = new_accumulator(inplace)
        accumulator.append(value)
        self._values[name] = accumulator

    def _new_value(self, like: Any = None) -> Any:
        return new_accumulator(inplace=isinstance(like, RunningMeanVar))
