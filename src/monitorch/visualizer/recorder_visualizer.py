"""Records numbers to a file, to be played to another visualizer later."""

import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from .abstract_visualizer import AbstractVisualizer, Ranges, TagAttributes, Values
from .recording import FilePath, call_line, check_format, header_line, plot_line, tag_line


class RecorderVisualizer(AbstractVisualizer):
    """Appends every call to a file, as one session of it.

    Nothing is overwritten: an existing file must be a recording, and is continued. Each call writes its line at once,
    so a process that is killed loses at most the line being written.

    Args:
        filepath: the recording; the file is made at the first call, its folder must exist.
    """

    file: FileIO | None = None
    _closed = False

    def __init__(self, filepath: FilePath) -> None:
        self.filepath = filepath
        self.session = uuid4().hex[:12]
        self._path = Path(filepath).absolute()  # the working directory may change before the first call
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"the folder for the recording {filepath} does not exist: {self._path.parent}")
        if self._path.exists():
            check_format(self._path)

    def register_tags(self, main_tag: str, tag_attr: TagAttributes) -> None:
        """Record a tag."""
        self._append(tag_line(self.session, main_tag, tag_attr))

    def plot_numerical_values(
        self, epoch: int, main_tag: str, values_dict: Values, ranges_dict: Ranges | None = None
    ) -> None:
        """Record lines and bands."""
        self._append_plot("plot_numerical_values", epoch, main_tag, values_dict, ranges_dict)

    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Record rates."""
        self._append_plot("plot_probabilities", epoch, main_tag, values_dict)

    def plot_relations(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Record shares."""
        self._append_plot("plot_relations", epoch, main_tag, values_dict)

    def introduce_layers(self, layers: Sequence[str]) -> None:
        """Record the order of the model."""
        self._append(call_line(self.session, "introduce_layers", list(layers)))

    def begin_tick(self, epoch: int, step: int, axis: str) -> None:
        """Record the step of a tick."""
        self._append(call_line(self.session, "begin_tick", int(epoch), int(step), axis))

    def count_nonfinite(self, epoch: int, main_tag: str, counts: Mapping[str, int]) -> None:
        """Record how many samples were left out."""
        self._append(call_line(self.session, "count_nonfinite", int(epoch), main_tag, dict(counts)))

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        self._closed = True
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> "RecorderVisualizer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _append_plot(self, *call: Any) -> None:
        self._append(plot_line(self.session, *call))

    def _append(self, line: bytes) -> None:
        if self._closed:
            raise ValueError(f"the recording {self.filepath} is closed and takes no more numbers")
        if self.file is None:
            self.file = self._path.open("a+b", buffering=0)
            line = _missing_line_end(self.file) + header_line(self.session) + line
        # nearly always one system call, so lines of two recorders do not mix
        while line:
            line = line[self.file.write(line) :]


def _missing_line_end(file: FileIO) -> bytes:
    """The newline that a killed process could not write."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"
