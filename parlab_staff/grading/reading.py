"""Reads a submitted file. The result is always a notebook or a message for the student."""

import json
import os
import re
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4

from parlab.runtime.paths import ROOT
from parlab_staff.grading.file_kinds import LFS_POINTER, decoded, what_is_wrong
from parlab_staff.notebooks.make import OWN

MAX_BYTES = 50 * 2**20
MAX_CELLS = 2000
MAX_CODE = 2**19  # characters; Python's parser needs a thousand times as much memory
MAX_OLD = 5 * 2**20  # bytes of a notebook in an old format, which must be converted
PYTHON = "python"  # metadata of `parse`'s result: the version of Python that ran the notebook
SMALL = 4 * 2**20  # bytes; a file of this size is cheap to read
READER_MEMORY = 2**29  # of the process that reads larger files
READER_SECONDS = 60
# jsonschema would load a grammar for URLs, which no notebook needs, in 1.5 s.
_READER = (
    "import sys; sys.modules['rfc3987_syntax'] = None; "
    "from parlab_staff.grading.reading import main; main()"
)


def origin(notebook: NotebookNode) -> dict[str, Any]:
    """Return a copy's lab and release: {"lab": …, "derived": fingerprint}; {} if unknown."""
    own = notebook.metadata.get(OWN)
    return dict(own) if isinstance(own, dict) else {}


def other_python(notebook: NotebookNode) -> list[str]:
    """Return a sentence for the student if another version of Python wrote the notebook."""
    known = re.match(r"3\.(\d+)", notebook.metadata.get(PYTHON, ""))
    minor = sys.version_info.minor
    if known is None or int(known[1]) == minor:
        return []
    new = (
        f" Features newer than Python 3.{minor} raise errors there."
        if int(known[1]) > minor
        else ""
    )
    return [f"The notebook was written with Python {known[0]}, and graded with 3.{minor}.{new}"]


class NotReadable(ValueError):
    """The file is not a notebook. The text is for the student."""


class NotGiven(ValueError):
    """There is no file to grade. The instructor must fix that. It never means a score of zero."""


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes. Raises NotGiven, or NotReadable if it is too large."""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            raise NotGiven("it is a link: collect the file itself")
        if not stat.S_ISREG(found.st_mode):
            raise NotGiven("it is not an ordinary file")
        if found.st_size > MAX_BYTES:
            raise NotReadable(
                f"the file has {found.st_size / 2**20:.0f} MiB; notebooks of up to "
                f"{MAX_BYTES >> 20} MiB are read. Clear the outputs and hand it in again"
            )
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise NotGiven(f"it cannot be read: {error.strerror}") from None


def read_notebook(path: Path) -> NotebookNode:
    """Return the notebook in a file, as `parse` does. Raises NotGiven and NotReadable.

    A separate process with limits reads a large file, because one file can need a hundred times as
    much time and memory as another file of the same size.
    """
    data = read_bytes(path)
    return parse(data) if len(data) <= SMALL else _parse_elsewhere(data)


def _parse_elsewhere(data: bytes) -> NotebookNode:
    size = f"the file has {len(data) / 2**20:.0f} MiB"
    too_much = NotReadable(f"{size}, and takes too much to read: clear the outputs")
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-c", _READER],
            input=data,
            capture_output=True,
            timeout=READER_SECONDS,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            preexec_fn=_limit_memory,
        )
        answer = json.loads(ran.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # the process reached a limit
        raise too_much from None
    if "problem" in answer:
        raise NotReadable(answer["problem"])
    return nbformat.from_dict(answer["notebook"])


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (READER_MEMORY, READER_MEMORY))


def parse(data: bytes) -> NotebookNode:
    """Return a notebook of format 4, without outputs. Raises NotReadable and NotGiven.

    Lone surrogates in sources become question marks, so that the text can be written.
    """
    if not data.strip():
        raise NotReadable("the file is empty")
    try:
        text = decoded(data)
    except ValueError as error:
        raise NotReadable(str(error)) from None
    if text.startswith(LFS_POINTER):
        raise NotGiven("it is a pointer of Git LFS: collect the file itself with `git lfs pull`")
    try:
        content = json.loads(text)
    except RecursionError:
        raise NotReadable("the file is nested too deeply: it is no notebook") from None
    except ValueError as error:
        raise NotReadable(what_is_wrong(text, error)) from None
    try:
        return _plain(_upgraded(content, len(data)))
    except NotReadable:
        raise
    except Exception:  # nbformat raises many kinds of errors if this is no notebook
        raise _invalid(f"its contents are not in format {content['nbformat']}") from None


def _invalid(why: str) -> NotReadable:
    return NotReadable(
        f"the file is no valid notebook: {why}. Open it in JupyterLab, correct it, save it, and "
        "hand it in again"
    )


def _upgraded(content: Any, size: int) -> dict[str, Any]:
    if not isinstance(content, dict) or "nbformat" not in content:
        raise NotReadable("the file is JSON, but no notebook")
    if type(content["nbformat"]) is not int:  # isinstance would accept `true`
        raise _invalid(f"its nbformat is {json.dumps(content['nbformat'])[:20]}, not a number")
    if content["nbformat"] > 4:
        raise NotReadable(f"it is a notebook of format {content['nbformat']}; save it in format 4")
    if content["nbformat"] == 4:
        return content
    if size > MAX_OLD:
        raise NotReadable("it is a large notebook of an old format; save it in format 4")
    return nbformat.convert(nbformat.from_dict(content), 4)


def _plain(notebook: dict[str, Any]) -> NotebookNode:
    """Return the cells with only the fields that grading needs. Editors may change the others."""
    cells = notebook.get("cells")
    if not isinstance(cells, list) or not cells:
        raise NotReadable("the notebook has no cells")
    if len(cells) > MAX_CELLS:
        raise NotReadable(f"the notebook has {len(cells)} cells; up to {MAX_CELLS} are read")
    metadata = notebook.get("metadata")
    plain = v4.new_notebook(metadata={OWN: _own(metadata), PYTHON: _python(metadata)})
    plain.cells = [_cell(cell, number) for number, cell in enumerate(cells, 1)]
    code = sum(len(cell.source) for cell in plain.cells if cell.cell_type == "code")
    if code > MAX_CODE:
        raise NotReadable(f"its code has {code:,} characters; up to {MAX_CODE:,} are read")
    return plain


def _own(metadata: Any) -> dict[str, str]:
    """Return the lab and the release of which it is a copy."""
    own = metadata.get(OWN) if isinstance(metadata, dict) else None
    found = {name: own.get(name) for name in ("lab", "derived")} if isinstance(own, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _python(metadata: Any) -> str:
    """Return the version of Python that last ran the notebook; "" if unknown."""
    language = metadata.get("language_info") if isinstance(metadata, dict) else None
    version = language.get("version") if isinstance(language, dict) else None
    return version if isinstance(version, str) and language.get("name") == "python" else ""


def _cell(cell: Any, number: int) -> NotebookNode:
    if not isinstance(cell, dict):
        raise _invalid(f"cell {number} of the file is {json.dumps(cell)[:20]}, and no cell")
    source = cell.get("source") or ""
    lines = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) for line in lines):
        raise _invalid(f"the source of its cell {number} is no text")
    metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
    tags = metadata.get("tags")
    return NotebookNode(
        cell_type="code" if cell.get("cell_type") == "code" else "markdown",
        source=_clean("".join(lines)),
        # Old formats and some editors have no ids.
        id=str(cell.get("id") or f"without-id-{number}"),
        metadata=NotebookNode(
            exercise=str(metadata.get("exercise", "")),
            tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
        ),
    )


def _clean(text: str) -> str:
    """Return the text with Unix line ends, and with question marks for lone surrogates."""
    text = text.encode("utf-8", "replace").decode()
    return text.replace("\r\n", "\n").replace("\r", "\n")


def main() -> None:
    """Read a notebook from stdin. Write it, or a message about it, to stdout as JSON."""
    try:
        answer = {"notebook": parse(sys.stdin.buffer.read())}
    except NotReadable as error:
        answer = {"problem": str(error)}
    json.dump(answer, sys.stdout)
