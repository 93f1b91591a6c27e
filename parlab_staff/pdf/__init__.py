"""Print the built book as a PDF: `parlab pdf`, or `parlab pdf --edition student`.

Labs are left out. Learners work on them in JupyterLab, and unsolved exercises would only double the
number of pages. The full edition ends with the reference solution of each exercise, for
instructors.
"""

import tempfile
from pathlib import Path

import yaml

from parlab.runtime.paths import ROOT
from parlab.setup.doctor.programs import find_chromium, install_command
from parlab_staff.book.folders import make_writable
from parlab_staff.book.source import EDITIONS, pages_of
from parlab_staff.pdf.chromium import print_document
from parlab_staff.pdf.combine import combined
from parlab_staff.pdf.tags import complete


def print_book(
    edition: str = "full", built: Path | None = None, output: Path | None = None
) -> Path:
    """Print an edition of the book from the folder `built` (default `_build/html`).

    Return the path of the PDF: `output` (default `_build/pdf/parlab.pdf`). Raises ValueError if
    this edition is not built, if there is no Chromium, or if the PDF cannot be written.
    """
    built = built or ROOT / "_build" / "html"
    output = output or ROOT / "_build" / "pdf" / "parlab.pdf"
    print_pages(built, pages_to_print(built, edition), output)
    return output


def print_pages(built: Path, pages: list[str], output: Path) -> None:
    """Print some pages of the built book, such as "book/01_mpi", in order."""
    if output.is_dir():
        raise ValueError(f"{output} is a folder: add the name of a file, such as parlab.pdf")
    make_writable(output.parent, "choose another file with --output")
    browser = find_chromium()
    if browser is None:
        raise ValueError(
            f"Chromium or Chrome prints the book, and none was found: {install_command('chromium')}"
        )
    with tempfile.TemporaryDirectory() as folder:
        document, printed = Path(folder) / "book.html", Path(folder) / "book.pdf"
        document.write_text(combined(built, pages), encoding="utf-8")
        print_document(document, printed, browser)
        complete(printed, output)


def pages_to_print(built: Path, edition: str) -> list[str]:
    """Return the pages of an edition in order, without the labs, such as "book/01_mpi".

    Raises ValueError if the folder `built` does not contain this edition.
    """
    if edition not in EDITIONS:
        raise ValueError(f"no edition {edition!r}: choose one of {', '.join(EDITIONS)}")
    command = "make book" if edition == "full" else f"make book EDITION={edition}"
    named = pages_of(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    pages = [page for page in named if not page.startswith("labs/")]
    missing = [page for page in pages if not (built / f"{page}.html").is_file()]
    if pages[0] in missing:
        raise ValueError(f"the book is not built in {built}: run `{command}` first")
    if edition == "full" and missing:
        raise ValueError(f"{built} does not contain {missing[0]}.html: run `{command}` again")
    if edition != "full" and (built / "solutions").exists():
        raise ValueError(f"{built} contains the full edition: run `{command}` first")
    return [page for page in pages if page not in missing]
