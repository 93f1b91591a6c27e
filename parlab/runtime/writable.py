"""Whether a folder can be written to, found by writing."""

import os
import tempfile
from pathlib import Path

_BYTES = 2**16  # a file system that is full may still take a name, and a few bytes


def why_not(folder: Path) -> str:
    """Return why files cannot be written below `folder`, which may be new; "" if they can."""
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{place}: {error.strerror}"
    return ""
