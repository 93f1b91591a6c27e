"""Writes the playground into a built book: its pages, and everything that they load.

    play/ring_shift.html …        one page for each exercise and example
    play/sw.js                    the service worker: headers, and reading offline
    play/assets-HASH/             scripts, style, and editor
    play/course-HASH.json         the Python files of the course
    play/pyodide-VERSION-HASH/    Python and NumPy
    play/licenses/                what is included, and under which license

The addresses of all files except the pages contain a hash, so that a browser never uses files of
two versions together.
"""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from parlab.plots import look
from parlab_staff.play.bundle import write_python_files
from parlab_staff.play.pages import PlayPage, play_pages
from parlab_staff.play.pyodide import write_pyodide

HERE = Path(__file__).parent
_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "page"), undefined=StrictUndefined, trim_blocks=True
)
# The folders and files that the pages load, with their places in the folder of assets.
_LOADED = {
    "page": "page/*.*s",  # scripts and style
    "runtime": "runtime/*.js",
    "vendor/codemirror": "vendor/codemirror/codemirror.js",
}
# The book's copy of MathJax.
FORMULAS = "../_static/mathjax/tex-svg-full.js"
# The roles in the course's other figures from which the colors of a picture come.
_COLORS = {
    "compute": "compute",
    "communication": "communication",
    "idle": "idle",
    "stuck": "reference",
}


def write_playground(book: Path, edition: str) -> None:
    """Write `play/` into the folder of a built book. The student edition gets no solutions."""
    play = book / "play"
    shutil.rmtree(play, ignore_errors=True)
    play.mkdir(parents=True)
    python = write_pyodide(play)
    assets = _write_assets(play)
    pages = play_pages(edition)
    addresses = {"pyodide": f"{python}/", "files": write_python_files(play)}
    colors = {name: look.style(role).colour for name, role in _COLORS.items()}
    for page in pages:
        _write(
            play / f"{page.name}.html", "page.html.j2",
            assets=assets, page=page, colors=colors, formulas=FORMULAS,
            data=as_script(page, addresses),
        )  # fmt: skip
    _write(play / "index.html", "index.html.j2", assets=assets, pages=pages)
    _write_licenses(play / "licenses", assets)
    shell = [file.relative_to(play) for file in sorted(play.rglob("*")) if file.is_file()]
    small = [path.as_posix() for path in shell if path.parts[0] != python]
    _write_service_worker(play, python, ["./", *small])


def _write_assets(play: Path) -> str:
    """Write the files that pages load into a folder with a hash in its name. Return its name."""
    files = {
        f"{folder}/{path.name}": path.read_bytes()
        for folder, pattern in _LOADED.items()
        for path in sorted(HERE.glob(pattern))
        if path.name != "sw.js"
    }
    name = f"assets-{_hash(part for path in files for part in (path.encode(), files[path]))}"
    for path, content in files.items():
        (play / name / path).parent.mkdir(parents=True, exist_ok=True)
        (play / name / path).write_bytes(content)
    return name


def _write_licenses(folder: Path, assets: str) -> None:
    shutil.copytree(HERE / "vendor" / "licenses", folder)
    shutil.copy(HERE / "vendor" / "codemirror" / "LICENSE", folder / "CodeMirror-MIT.txt")
    [numpy] = (HERE / "vendor").glob("numpy-*.whl")
    with zipfile.ZipFile(numpy) as wheel:
        [text] = (name for name in wheel.namelist() if name.endswith("dist-info/LICENSE.txt"))
        (folder / "NumPy-BSD-3-Clause.txt").write_bytes(wheel.read(text))
    texts = sorted(file.name for file in folder.glob("*.txt"))
    _write(folder / "index.html", "licenses.html.j2", assets=f"../{assets}", texts=texts)


def as_script(page: PlayPage, addresses: dict[str, str]) -> str:
    """Return a page's data as JSON that cannot end its script element."""
    data = page.data | {"assets": addresses, "formulas": FORMULAS}
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")


def _write(path: Path, template: str, **values: Any) -> None:
    path.write_text(_TEMPLATES.get_template(template).render(values), encoding="utf-8")


def _write_service_worker(play: Path, python: str, shell: list[str]) -> None:
    contents = (play / path for path in shell if path != "./")
    constants = {
        "VERSION": _hash(path.read_bytes() for path in contents),
        "LARGE": python,
        "SHELL": shell,
    }
    lines = [f"const {name} = {json.dumps(value)};\n" for name, value in constants.items()]
    worker = (HERE / "page" / "sw.js").read_text(encoding="utf-8")
    (play / "sw.js").write_text("".join(lines) + worker, encoding="utf-8")


def _hash(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:12]
