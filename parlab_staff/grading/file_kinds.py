"""Explains why a file with a notebook's name is not a notebook, and what to hand in instead."""

import json

CONFLICT = "<<<<<<< "
LFS_POINTER = "version https://git-lfs."
_DOWNLOAD = (
    "Download the notebook itself (in JupyterLab: File > Download; on GitHub: Download raw file) "
    "and hand it in"
)
# The first bytes of files that people hand in as notebooks. Text is compared in lower case.
_KINDS = {
    b"%pdf": "a PDF",
    b"pk\x03\x04": "a ZIP archive or an Office document",
    b"\x1f\x8b": "a gzip archive",
    b"\x89png": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"{\\rtf": "an RTF document",
    b"#!": "a script",
    b"# %%": "a Python script",
    b"# in[": "a Python script",
    b"# coding": "a Python script",
    b"#coding": "a Python script",
    b"# ---\n# jupyter": "a Python script",
}


def decoded(data: bytes) -> str:
    """Return the text of JSON in UTF-8, UTF-16, or UTF-32. Raises ValueError for other files."""
    if kind := _kind(data):
        raise ValueError(f"the file is {kind}, not a notebook. {_DOWNLOAD}")
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        if not data.lstrip().startswith(b"{"):
            raise ValueError("the file is not text: it is no notebook") from None
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line} of the file is not in UTF-8, as notebooks are: an editor saved it in "
            "another encoding. Open it in that editor, save it with the encoding UTF-8, and "
            "hand it in again"
        ) from None


def what_is_wrong(text: str, error: ValueError) -> str:
    """Return why a text is not valid JSON, in words for the student."""
    if CONFLICT in text:
        return "the file has merge-conflict markers (<<<<<<<) in it"
    if text.lstrip().startswith("{"):
        return f"the file was cut off or damaged, and is not JSON: {error}. {_DOWNLOAD} again"
    start = " ".join(text[:200].split())[:40]
    return f"the file is not a notebook: it starts with {start!r}. {_DOWNLOAD}"


def _kind(data: bytes) -> str:
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:100].lower()
    return next((kind for begin, kind in _KINDS.items() if start.startswith(begin)), "")
