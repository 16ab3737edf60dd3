"""Every error and warning that monitorch raises on purpose.

Some errors also inherit a built-in class: code written for earlier releases catches those.
"""

from collections.abc import Iterable
from typing import Any


class MonitorchError(Exception):
    """Root of all errors of this package."""


class OptionError(MonitorchError, ValueError, AttributeError):
    """An option has a value that is not one of the possible ones."""

    @classmethod
    def unknown(cls, option: str, value: Any, choices: Iterable[Any]) -> "OptionError":
        """The error for a value outside a closed list of choices."""
        return cls(f"{option}={value!r} is unknown; choose from {', '.join(map(repr, choices))}")


class LifecycleError(MonitorchError, RuntimeError, AssertionError):
    """A call came at a moment when it makes no sense, such as detaching twice."""


class UnsupportedModelError(MonitorchError, TypeError):
    """The model is wrapped in something whose insides cannot be observed correctly."""


class ExchangeError(MonitorchError, RuntimeError):
    """The numbers of other processes could not be had."""


class MissingExtraError(MonitorchError, ImportError):
    """An optional package is needed; the message holds the pip line."""

    @classmethod
    def needed_by(cls, what: str, package: str, extra: str) -> "MissingExtraError":
        """The error for a feature whose package is not installed."""
        return cls(f"{what} needs the package {package!r}: pip install 'monitorch[{extra}]'")


class RecordingError(MonitorchError, ValueError):
    """A file is not a recording that this version can play."""


class StoreError(MonitorchError, ValueError):
    """A file or folder is not a run that this version can read or continue."""


class SkippedSample(MonitorchError, ValueError):  # noqa: N818  # not an error of anybody
    """A tensor that holds nothing to measure: this sample is left out, the layer stays watched."""


class MonitorchWarning(UserWarning):
    """Something could not be observed; training is not affected."""
