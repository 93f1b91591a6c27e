"""Files of a report: safe names for any student; a file is there whole or not at all."""

import hashlib
import os
import secrets
import unicodedata
from collections import Counter
from pathlib import Path

_LONGEST = 80  # bytes of UTF-8; file systems allow 255 with all that comes behind
# Windows opens a device for these, whatever stands behind the first dot.
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}


def write_atomically(path: Path, text: str) -> Path:
    """Write UTF-8 so that `path` never holds half of it; lone surrogates as `\\udc80`."""
    part = path.with_name(f".part-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        part.write_bytes(text.encode("utf-8", "backslashreplace"))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def file_names(students: list[str]) -> list[str]:
    """A file name, without ending, for each student: safe on all systems, no two alike.

    A name that is safe stays as it is. A changed one, and those that some systems hold for equal
    (`Anna`, `anna`), have a hash behind them.
    """
    names = []
    repeats = [students[:index].count(student) for index, student in enumerate(students)]
    for student in students:
        name = _readable(student)
        same = name == unicodedata.normalize("NFC", student)
        names.append(name if same else f"{name}-{_hash(student)}")
    # More than one round where somebody took the name that another student's hash would give.
    while alike := _alike(names):
        names = [
            f"{name}-{_hash(f'{name}/{student}/{repeat}')}" if _as_compared(name) in alike else name
            for name, student, repeat in zip(names, students, repeats, strict=True)
        ]
    return names


def _alike(names: list[str]) -> set[str]:
    counts = Counter(_as_compared(name) for name in names)
    return {name for name, count in counts.items() if count > 1}


def _readable(student: str) -> str:
    """`student` with `_` for what a file name should not hold; never empty, never long."""
    kept = "".join(c if _keeps(c) else "_" for c in unicodedata.normalize("NFC", student))
    kept = kept.encode()[:_LONGEST].decode(errors="ignore")
    kept = kept.lstrip(" .-").rstrip(" .")
    return f"_{kept}" if not kept or kept.split(".")[0].lower() in _DEVICES else kept


def _keeps(character: str) -> bool:
    """Letters, digits and the marks on them in every script, and what is harmless in a name."""
    return character in " ._-+,()@" or unicodedata.category(character)[0] in "LNM"


def _as_compared(name: str) -> str:
    """Equal for names that some file system holds for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
