"""Build the HTML book: `parlab book`, or `parlab book --edition student`.

The full edition shows each lab's reference solution after a click. The student edition is built
from sources without solutions, so that no solution can appear in a page, in the search index, or in
a download.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from parlab.runtime.paths import ROOT
from parlab_staff.book.folders import make_writable
from parlab_staff.book.source import EDITIONS, stage
from parlab_staff.play.build import write_playground

# -n: every reference must resolve. -W: a warning fails the build; --keep-going lets it report all.
_OPTIONS = ["-n", "-W", "--keep-going"]


def build(edition: str = "full", output: Path | None = None) -> int:
    """Build an edition of the book into `output` (default `_build/html`). Return 0 on success.

    The pages of `book/` are run, so their numbers and figures come from this checkout. Labs and
    solutions show the outputs stored with them. Raises ValueError for an unknown edition, or for
    a folder that is not writable.
    """
    if edition not in EDITIONS:
        raise ValueError(f"no edition {edition!r}: choose one of {', '.join(EDITIONS)}")
    output = output or ROOT / "_build" / "html"
    work = ROOT / "_build" / "book" / edition
    for folder in (work, output):
        make_writable(folder, "change its permissions, or build the book in a copy of the course")
    # Start from nothing: an earlier build would hide what changed in parlab.
    shutil.rmtree(work, ignore_errors=True)
    code = render(ROOT, work, edition)
    if code != 0:
        print(f"The book was not built: fix the warnings above, then `{_command(edition)}`.")
        return code
    built = work / "_build" / "html"
    write_playground(built, edition)
    _replace(built, output)
    print(f"The {edition} edition is built: open {_shown(output / 'index.html')} in a browser.")
    return 0


def render(root: Path, work: Path, edition: str) -> int:
    """Build an edition of the course in `root` into `work/_build/html`. Return 0 on success."""
    source = work / "source"
    stage(root, source, edition)
    code = _run_jupyter_book(source, work)
    if code == 0:
        _offer_original_notebooks(root, work / "_build" / "html")
    return code


def _run_jupyter_book(source: Path, work: Path) -> int:
    program = "from jupyter_book.cli.main import main; from parlab_staff.book import extension; "
    program += "extension.kill_kernels(); main()"
    arguments = ["build", str(source), *_OPTIONS, "--path-output", str(work)]
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        command,
        cwd=work,
        encoding="utf-8",
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        finished = False
        for line in process.stdout:
            # Jupyter Book's last lines name its temporary folder, so do not print them.
            finished = finished or line.startswith("Finished generating")
            if not finished:
                # Name the files that people edit, not their copies.
                print(line.replace(f"{source}/", ""), end="", flush=True)
    return process.returncode


def _offer_original_notebooks(root: Path, built: Path) -> None:
    """Make the download buttons of pages offer the notebooks as they are in the repository."""
    downloads = built / "_sources"
    for notebook in downloads.rglob("*.ipynb"):
        shutil.copy(root / notebook.relative_to(downloads), notebook)


def _replace(built: Path, output: Path) -> None:
    # `output` can be a link to a web server's folder, or NFS can keep a file in it.
    shutil.rmtree(output.resolve(), ignore_errors=True)
    output.resolve().mkdir(parents=True, exist_ok=True)
    shutil.copytree(built, output, dirs_exist_ok=True)


def _command(edition: str) -> str:
    return "make book" if edition == "full" else f"make book EDITION={edition}"


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
