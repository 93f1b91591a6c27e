"""File names for students, whose names may hold anything."""

import hashlib
import re
import unicodedata

_LONGEST = 80  # bytes of UTF-8; file systems allow 255 with all that comes behind
# Windows opens a device for these, whatever stands behind the first dot.
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}
_MARKED = re.compile(r"-[0-9a-f]{10}$")


def file_name(student: str) -> str:
    """A name without ending for all files of a student: safe on all systems, no two alike.

    Always the same for the same student, whoever else is in the class. A name in small letters
    that is safe stays as it is. Others, and those that some system holds for equal to another one
    (`Anna`, `anna`), have a fingerprint behind them.
    """
    name = _readable(student)
    as_it_is = name == student == _as_compared(student) and not _MARKED.search(student)
    return name if as_it_is else f"{name}-{_fingerprint(student)}"


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


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
