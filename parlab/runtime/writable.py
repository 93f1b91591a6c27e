"""Checks if a folder is writable, by writing a file."""

import os
import tempfile
from pathlib import Path

_BYTES = 2**16  # a full file system may still accept an empty file, or a few bytes


def why_not(folder: Path) -> str:
    """Return why files cannot be written below `folder`, or "" if they can.

    The folder need not exist.
    """
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{place}: {error.strerror}"
    return ""
