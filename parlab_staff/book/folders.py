"""Makes the folders that a command writes into, before it begins work that takes minutes."""

import tempfile
from pathlib import Path


def make_writable(folder: Path, otherwise: str) -> None:
    """Create a folder. Raise ValueError, with what to do, if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{folder} is not writable ({error.strerror}): {otherwise}") from None
