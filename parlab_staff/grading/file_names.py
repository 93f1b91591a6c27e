"""File names for students, whose names may contain any character."""

import hashlib
import re
import unicodedata

_LONGEST = 80  # bytes of UTF-8; file systems allow 255 with all endings
# Windows opens a device for these names, even if a dot and other text follow.
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}
_MARKED = re.compile(r"-[0-9a-f]{10}$")


def file_name(student: str) -> str:
    """Return the name, without ending, of all files of a student: safe and unique on all systems.

    It depends only on the student. A safe name in lower case does not change. Other names get a
    fingerprint at the end, so that names that some system treats as equal (`Anna`, `anna`) differ.
    """
    name = _readable(student)
    as_it_is = name == student == _as_compared(student) and not _MARKED.search(student)
    return name if as_it_is else f"{name}-{_fingerprint(student)}"


def _readable(student: str) -> str:
    """Return `student` with `_` for unsuitable characters. The result is not empty and not long."""
    kept = "".join(c if _keeps(c) else "_" for c in unicodedata.normalize("NFC", student))
    kept = kept.encode()[:_LONGEST].decode(errors="ignore")
    kept = kept.lstrip(" .-").rstrip(" .")
    return f"_{kept}" if not kept or kept.split(".")[0].lower() in _DEVICES else kept


def _keeps(character: str) -> bool:
    """Return True if a character is a letter, mark, or digit of any script, or is harmless."""
    return character in " ._-+,()@" or unicodedata.category(character)[0] in "LNM"


def _as_compared(name: str) -> str:
    """Return the same text for names that some file system treats as equal."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
