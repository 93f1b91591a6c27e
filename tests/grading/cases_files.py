"""Files of every kind, most of them no notebooks."""

import json
import os
from pathlib import Path

import nbformat

from tests.grading.cases import ALL, case, without
from tests.grading.small_lab import Copy


@case("passed", ALL, student="-Zoë [2] müller (copy)")
def right(copy: Copy, path: Path) -> None:
    """All solved, by a student whose name a shell would not like."""


@case("partial", without("ring_reduce_scatter", "ring_all_reduce"),
      ring_reduce_scatter="missing", ring_all_reduce="missing")  # fmt: skip
def half_done(copy: Copy, path: Path) -> None:
    copy.stub("ring_reduce_scatter").stub("ring_all_reduce")


@case("failed", 0, says="Not done", ring_shift="missing", ring_all_gather="missing",
      ring_reduce_scatter="missing", ring_all_reduce="missing")  # fmt: skip
def untouched(copy: Copy, path: Path) -> None:
    for exercise in copy.master.exercises:
        copy.stub(exercise.key)


@case("error", 0, says="the file is empty")
def empty(copy: Copy, path: Path) -> None:
    path.touch()


@case("error", 0, says="no notebook")
def braces(copy: Copy, path: Path) -> None:
    path.write_text("{}")


@case("error", 0, says="no notebook")
def brackets(copy: Copy, path: Path) -> None:
    path.write_text("[]")


@case("error", 0, says="cut off")
def truncated(copy: Copy, path: Path) -> None:
    path.write_text(copy.text()[:3000])


@case("error", 0, says="not text")
def binary(copy: Copy, path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 10)


@case("passed", ALL)
def byte_order_mark(copy: Copy, path: Path) -> None:
    path.write_text(copy.text(), encoding="utf-8-sig")


@case("error", 0, says="merge-conflict")
def merge_conflict(copy: Copy, path: Path) -> None:
    text = copy.text()
    path.write_text(f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> theirs\n")


@case("passed", ALL)
def format_3(copy: Copy, path: Path) -> None:
    """What an old editor saves: other names for everything, and no ids."""
    path.write_text(json.dumps(nbformat.convert(copy.notebook, 3)))


@case("error", 0, says="format 5")
def format_5(copy: Copy, path: Path) -> None:
    copy.notebook.nbformat = 5
    path.write_text(json.dumps(copy.notebook))


@case("error", 0, says="no cells")
def no_cells(copy: Copy, path: Path) -> None:
    copy.notebook.cells = []


@case("passed", ALL)
def no_metadata(copy: Copy, path: Path) -> None:
    """Neither metadata nor ids, anywhere: exercises are known by what they define."""
    notebook = json.loads(copy.text())
    del notebook["metadata"], notebook["nbformat_minor"]
    for cell in notebook["cells"]:
        for name in ("metadata", "id", "outputs", "execution_count"):
            cell.pop(name, None)
    path.write_text(json.dumps(notebook))


@case("passed", ALL)
def lone_surrogates(copy: Copy, path: Path) -> None:
    copy.answer("ring_shift", copy.reference("ring_shift") + "\n# SURROGATE")
    path.write_text(copy.text().replace("SURROGATE", "\\ud800 \\udfff"))


@case("error", 0, says="200 MiB")
def large(copy: Copy, path: Path) -> None:
    path.touch()
    os.truncate(path, 200 * 2**20)


@case("error", 0, says="its code has")
def much_code(copy: Copy, path: Path) -> None:
    """A parser takes a thousand times its memory, and nobody wrote it by hand."""
    copy.insert("x\n" * 2**20, before="exercise-ring_shift")


@case("error", 0, says="nested")
def nested(copy: Copy, path: Path) -> None:
    path.write_text("[" * 200_000)


@case("grader_error", None, notes="link")
def dangling_link(copy: Copy, path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@case("grader_error", None, notes="link")
def link_to_the_master(copy: Copy, path: Path) -> None:
    path.symlink_to(copy.master.path)


@case("passed", ALL, student=".ipynb")
def folder_named_ipynb(copy: Copy, path: Path) -> None:
    folder = path.with_name(".ipynb")
    folder.mkdir()
    (folder / "lab.ipynb").write_text(copy.text())


@case("grader_error", None, notes="no ordinary file")
def pipe(copy: Copy, path: Path) -> None:
    """A pipe: who opens it waits for ever."""
    os.mkfifo(path)


@case("grader_error", None, notes="which")
def two_notebooks(copy: Copy, path: Path) -> None:
    folder = path.with_suffix("")
    folder.mkdir()
    for name in ("draft", "final"):
        (folder / f"{name}.ipynb").write_text(copy.text())


@case("grader_error", None, notes="which of these")
def handed_in_twice(copy: Copy, path: Path) -> None:
    """A file and a folder of the same student."""
    path.write_text(copy.text())
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "01_small.ipynb").write_text(copy.text())


@case("missing", 0, says="no notebook")
def empty_folder(copy: Copy, path: Path) -> None:
    path.with_suffix("").mkdir()


@case("error", 0, says="not lab 01_small")
def wrong_lab(copy: Copy, path: Path) -> None:
    other = nbformat.v4.new_notebook(metadata={"parlab": {"lab": "02_data_parallel"}})
    other.cells = [nbformat.v4.new_code_cell("def sharded_sampler(): pass")]
    path.write_text(nbformat.writes(other))


@case("passed", ALL, notes="another release")
def old_release(copy: Copy, path: Path) -> None:
    copy.notebook.metadata.parlab.derived = "0123456789abcdef"
