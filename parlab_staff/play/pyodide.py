"""Writes Python for WebAssembly, which the ranks in a page load, from the vendored files."""

import functools
import gzip
import hashlib
import json
from pathlib import Path

from parlab_staff.play.vendor.fetch import FOLDER, VERSION, numpy_entry, pyodide_file, verify

_AS_THEY_ARE = ("pyodide.mjs", "pyodide.asm.js", "python_stdlib.zip")


@functools.cache
def _files() -> dict[str, bytes]:
    verify()
    entry = numpy_entry() | {"depends": []}
    lock = json.loads(pyodide_file("pyodide-lock.json"))
    lock["packages"] = {"numpy": entry}
    files = {name: pyodide_file(name) for name in _AS_THEY_ARE}
    files["pyodide.asm.wasm.packed"] = gzip.compress(pyodide_file("pyodide.asm.wasm"), 9, mtime=0)
    files["pyodide-lock.json"] = json.dumps(lock, sort_keys=True).encode()
    files[entry["file_name"]] = (FOLDER / entry["file_name"]).read_bytes()
    return files


def write_pyodide(folder: Path) -> str:
    """Write Python and NumPy into a new folder in `folder`. Return the name of that folder.

    The name contains the version and a hash of the files. Python itself is compressed there,
    because some servers do not compress it. The name of its file does not end in .gz, because other
    servers would declare a file with this ending as compressed, and browsers would unpack it.
    """
    files = _files()
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(name.encode() + hashlib.sha256(files[name]).digest())
    into = folder / f"pyodide-{VERSION}-{whole.hexdigest()[:12]}"
    into.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (into / name).write_bytes(content)
    return into.name
