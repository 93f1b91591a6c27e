"""Files of every kind, most of which are not notebooks."""

import json
import os
from pathlib import Path

import nbformat

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)


@case("passed", case.all, student="-Zoë [2] müller (copy)")
def right(copy: Copy, path: Path) -> None:
    """Everything is solved. The student's name has characters that a shell treats specially."""


@case("partial", case.without("total", "mean"), total="missing", mean="missing")
def half_done(copy: Copy, path: Path) -> None:
    copy.stub("total").stub("mean")


@case("failed", 0, says="Not done", add="missing", total="missing", mean="missing")
def untouched(copy: Copy, path: Path) -> None:
    for exercise in copy.lab.exercises:
        copy.stub(exercise.key)


@case("error", 0, says="the file is empty")
def empty(copy: Copy, path: Path) -> None:
    path.touch()


@case("error", 0, says="no notebook")
def braces(copy: Copy, path: Path) -> None:
    path.write_text("{}", encoding="utf-8")


@case("error", 0, says="no notebook")
def brackets(copy: Copy, path: Path) -> None:
    path.write_text("[]", encoding="utf-8")


@case("error", 0, says="cut off")
def truncated(copy: Copy, path: Path) -> None:
    path.write_text(copy.text()[:3000], encoding="utf-8")


@case("error", 0, says="not text")
def binary(copy: Copy, path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 10)


@case("passed", case.all)
def byte_order_mark(copy: Copy, path: Path) -> None:
    path.write_text(copy.text(), encoding="utf-8-sig")


@case("passed", case.all)
def utf_16(copy: Copy, path: Path) -> None:
    """The file is in UTF-16, as written by PowerShell's `>` and old editors for Windows."""
    path.write_text(copy.text(), encoding="utf-16")


@case("error", 0, says="of the file is not in UTF-8, as notebooks are: ")
def windows_1252(copy: Copy, path: Path) -> None:
    copy.insert("# Größe", before="exercise-add")
    text = json.dumps(copy.notebook, indent=1, ensure_ascii=False)
    path.write_bytes(text.encode("cp1252", "replace"))


@case("error", 0, says="the file is a web page, not a notebook. Download the notebook itself")
def web_page(copy: Copy, path: Path) -> None:
    path.write_text("\n<!DOCTYPE html>\n<html><body>01_plain</body></html>", encoding="utf-8")


@case("error", 0, says="the file is a ZIP archive or an Office document, not a notebook")
def zip_archive(copy: Copy, path: Path) -> None:
    path.write_bytes(b"PK\x03\x04\x14\x00" + bytes(range(256)))


@case("error", 0, says="the file is not a notebook: it starts with 'def add(a, b):")
def python_code(copy: Copy, path: Path) -> None:
    path.write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")


@case("grader_error", None, notes="git lfs pull")
def lfs_pointer(copy: Copy, path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid x\n", encoding="utf-8")


@case("error", 0, says="merge-conflict")
def merge_conflict(copy: Copy, path: Path) -> None:
    text = copy.text()
    path.write_text(f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> theirs\n", encoding="utf-8")


@case("passed", case.all)
def format_3(copy: Copy, path: Path) -> None:
    """An old editor saved it in format 3, which has other field names and no ids."""
    path.write_text(json.dumps(nbformat.convert(copy.notebook, 3)), encoding="utf-8")


@case("error", 0, says="format 5")
def format_5(copy: Copy, path: Path) -> None:
    copy.notebook.nbformat = 5
    path.write_text(json.dumps(copy.notebook), encoding="utf-8")


@case("error", 0, says="no cells")
def no_cells(copy: Copy, path: Path) -> None:
    copy.notebook.cells = []


@case("passed", case.all)
def no_metadata(copy: Copy, path: Path) -> None:
    """No cell has metadata or an id, so exercises are found by the names they define."""
    notebook = json.loads(copy.text())
    del notebook["metadata"], notebook["nbformat_minor"]
    for cell in notebook["cells"]:
        for name in ("metadata", "id", "outputs", "execution_count"):
            cell.pop(name, None)
    path.write_text(json.dumps(notebook), encoding="utf-8")


@case("passed", case.all)
def lone_surrogates(copy: Copy, path: Path) -> None:
    copy.answer("add", copy.reference("add") + "\n# SURROGATE")
    path.write_text(copy.text().replace("SURROGATE", "\\ud800 \\udfff"), encoding="utf-8")


@case("error", 0, says="200 MiB")
def large(copy: Copy, path: Path) -> None:
    path.touch()
    os.truncate(path, 200 * 2**20)


@case("error", 0, says="its code has")
def much_code(copy: Copy, path: Path) -> None:
    """It has too much code to be written by hand, and a parser would need too much memory."""
    copy.insert("x\n" * 2**20, before="exercise-add")


def invalid(path: Path, notebook: dict) -> None:
    path.write_text(json.dumps({"nbformat": 4} | notebook), encoding="utf-8")


@case("error", 0, says="valid notebook: its nbformat is true, not a number. Open it in JupyterLab")
def format_true(copy: Copy, path: Path) -> None:
    invalid(path, json.loads(copy.text()) | {"nbformat": True})


@case("error", 0, says="valid notebook: its contents are not in format 3. Open it in JupyterLab")
def format_3_of_nothing(copy: Copy, path: Path) -> None:
    invalid(path, {"nbformat": 3, "worksheets": [{"cells": [None]}]})


@case("error", 0, says="valid notebook: cell 2 of the file is null, and no cell. Open it in")
def null_cell(copy: Copy, path: Path) -> None:
    invalid(path, {"cells": [{}, None]})


@case("error", 0, says="valid notebook: the source of its cell 1 is no text. Open it in")
def source_of_numbers(copy: Copy, path: Path) -> None:
    invalid(path, {"cells": [{"source": [1, 2]}]})


@case("passed", case.all)
def lines_of_an_old_mac(copy: Copy, path: Path) -> None:
    """Lines end with only a carriage return, but the lab's code is unchanged."""
    path.write_text(copy.text().replace("\\n", "\\r"), encoding="utf-8")


@case("error", 0, says="nested")
def nested(copy: Copy, path: Path) -> None:
    path.write_text("[" * 200_000, encoding="utf-8")


@case("grader_error", None, notes="link")
def dangling_link(copy: Copy, path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@case("grader_error", None, notes="link")
def link_to_the_solution(copy: Copy, path: Path) -> None:
    path.symlink_to(copy.lab.path)


@case("grader_error", None, notes="not an ordinary file")
def pipe(copy: Copy, path: Path) -> None:
    """It is a pipe. A program that opens it waits forever."""
    os.mkfifo(path)


@case(
    "partial",
    case.without("mean"),
    says="imports `no_such_package`, which is not installed where labs are graded.",
    mean="error",
)
def package_that_is_not_installed(copy: Copy, path: Path) -> None:
    copy.answer("mean", "import no_such_package\ndef mean(numbers):\n    return 1")


@case(
    "partial",
    case.without("mean"),
    says="was written with Python 3.99, and graded with 3.",
    notes="Features newer than Python 3.",
    mean="error",
)
def newer_python(copy: Copy, path: Path) -> None:
    copy.answer("mean", "def mean(numbers) => sum(numbers) / len(numbers)")
    copy.notebook.metadata.language_info = {"name": "python", "version": "3.99.1"}


@case("passed", case.all, says_nothing=True)
def newer_python_that_works(copy: Copy, path: Path) -> None:
    copy.notebook.metadata.language_info = {"name": "python", "version": "3.99.1"}


@case("error", 0, says="not lab 01_plain")
def wrong_lab(copy: Copy, path: Path) -> None:
    other = nbformat.v4.new_notebook(metadata={"parlab": {"lab": "02_data_parallel"}})
    other.cells = [nbformat.v4.new_code_cell("def sharded_sampler(): pass")]
    path.write_text(nbformat.writes(other), encoding="utf-8")


@case("error", 0, says="01_plain, and none of its exercises is in it. Hand in the")
def without_exercises(copy: Copy, path: Path) -> None:
    copy.notebook.cells = [cell for cell in copy.cells if "exercise" not in cell.metadata]


@case("passed", case.all, notes="another release")
def old_release(copy: Copy, path: Path) -> None:
    copy.notebook.metadata.parlab.derived = "0123456789abcdef"


@case("passed", case.all)
def many_pictures(copy: Copy, path: Path) -> None:
    """It is too large to be read in the grader's own process, but right."""
    stored = nbformat.v4.new_output("display_data", {"image/png": "x" * 5 * 2**20})
    copy.cell("exercise-add").outputs = [stored]


@case("error", 0, says="takes too much to read")
def costly(copy: Copy, path: Path) -> None:
    """It contains millions of small values: the file is small, but needs gigabytes of memory."""
    path.write_text('{"nbformat": 4, "cells": [' + "{}," * (8 * 2**20) + "{}]}", encoding="utf-8")
