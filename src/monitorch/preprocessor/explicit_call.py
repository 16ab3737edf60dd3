"""Numbers that the user pushes."""

from typing import Any

from .run_numbers import RunNumbers, sample_of


class ExplicitCall(RunNumbers):
    """Keeps pushed numbers by name; the first push of a name decides whether every value or only moments are kept.

    >>> call = ExplicitCall("train_loss", "val_loss")
    >>> call.push_loss(0.5, train=True)
    >>> call.push_memory("accuracy", 0.9)
    >>> call.value["train_loss"].mean, call.value["accuracy"]
    (0.5, [0.9])
    """

    def __init__(self, train_loss_str: str, non_train_loss_str: str) -> None:
        super().__init__()
        self.train_loss_str, self.non_train_loss_str = train_loss_str, non_train_loss_str

    @property
    def state(self) -> dict[str, Any]:
        """The accumulators by name; the same as ``value``."""
        return self.value

    def push_running(self, name: str, value: Any) -> None:
        """Add a number; only running moments are kept."""
        self._add(name, sample_of(value), inplace=True)

    def push_memory(self, name: str, value: Any) -> None:
        """Add a number; every value is kept."""
        self._add(name, sample_of(value), inplace=False)

    def push_loss(self, value: Any, *, train: bool, running: bool = True) -> None:
        """Add a training or validation loss; where steps are known, the mean training loss of a step is one sample."""
        if train:
            self._add_to_step(self.train_loss_str, sample_of(value), running)
        else:
            self._add(self.non_train_loss_str, sample_of(value), running, in_step=True)
