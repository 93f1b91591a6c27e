"""Where the course lies on this machine, which labs it has, and files that are never half there.

The standard library alone: `make setup` and ranks use this too.
"""

import os
import secrets
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def numbered(folder: Path, ending: str) -> list[Path]:
    """The files `NN_topic` with this ending in `folder`, by number: sources, notebooks, pages."""
    return sorted(folder.glob(f"[0-9][0-9]_*{ending}"))


def write_atomically(path: Path, text: str) -> Path:
    """Write UTF-8 so that `path` never holds half of it; lone surrogates as `\\udc80`."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f".part-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        part.write_bytes(text.encode("utf-8", "backslashreplace"))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
