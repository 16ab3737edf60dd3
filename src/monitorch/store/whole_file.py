"""Files that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file, or a folder, that gets its name when the block has ended; an error leaves nothing.

    A link leads to the new file; what is no file, such as ``/dev/stdout``, is written to directly.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise
