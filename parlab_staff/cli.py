"""The commands for authors and instructors, which are added to those of `parlab.setup.cli`.

`pyproject.toml` registers `add_commands` under the entry point group `parlab.commands`. Each
command imports what it needs when it runs, so that `--help` is quick.
"""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

staff = typer.Typer()
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.registered_commands += staff.registered_commands


@staff.command()
def book(
    edition: Annotated[
        str, typer.Option(help="full, or student (without solutions in pages, links, and search).")
    ] = "full",
) -> None:
    """Build the HTML book into _build/html."""
    from parlab_staff.book import build

    raise typer.Exit(build(edition))


@staff.command()
def pdf(
    edition: Annotated[
        str, typer.Option(help="full, or student (without solutions): what `parlab book` built.")
    ] = "full",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: _build/pdf/parlab.pdf.")
    ] = None,
) -> None:
    """Print the built book as a PDF, with Chromium."""
    from parlab_staff.pdf import print_book

    file = print_book(edition, output=output)
    print(f"The {edition} edition is printed: open {file}.")


@staff.command(context_settings=PASS_ON | {"help_option_names": []})
def notebooks(context: typer.Context) -> None:
    """Derive labs and solutions from solutions/*.py, and run the labs that changed."""
    from parlab_staff.notebooks import main

    raise typer.Exit(main(context.args))


@staff.command(name="try")
def try_(
    exercise: Annotated[str, typer.Argument(help="Key of the exercise, such as ring_shift.")],
    answers: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of answers, keys of mistakes, or files. Default: the reference."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Try the reference and all answers.")
    ] = False,
    ranks: Annotated[int, typer.Option(min=1, help="Number of ranks.")] = 4,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Try small changes of the reference, and list those that pass."
        ),
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=0,
            help="Run each check this often, with other inputs and pauses, and count the verdicts.",
        ),
    ] = 0,
) -> None:
    """Run an exercise's check on answers, and print what a learner would see.

    Example: parlab try ring_shift no_wait; or: parlab try ring_shift my_answer.py.
    """
    from parlab_staff.answers.try_command import main
    from parlab_staff.mutants.command import try_one

    wanted = answers or []
    code = try_one(exercise) if mutants else main(exercise, wanted, every, ranks, seeds)
    raise typer.Exit(code)


@staff.command()
def release(
    lab: Annotated[str, typer.Argument(help="Lab, such as 01_mpi, 01, or mpi.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to create. It may exist if it is empty.")
    ],
) -> None:
    """Write the handout for students: one lab and everything it needs to run.

    It contains no solution, no hidden check, and no grader. Students run `make lab` and hand in
    one file; the handout's README.md explains how.

    Example: parlab release 01_mpi --out handout/
    """
    from parlab_staff.release import write_handout

    folder = write_handout(lab, out)
    print(f"{folder} is ready: hand it out as it is. Students run `make lab` in it.")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def _limit(least: float, unit: str, text: str) -> Any:
    """Return an option that takes a finite number, at least `least`."""
    return typer.Option(min=least, callback=_finite, metavar=unit, help=text)


@staff.command()
def grade(
    lab: Annotated[
        str, typer.Argument(help="Lab, such as 01_mpi, 01, or mpi; or an executed solution's path.")
    ],
    submissions: Annotated[
        list[Path],
        typer.Argument(
            metavar="SUBMISSION…", help="Notebooks, folders of students, or the folder of a class."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for results and reports. Later runs continue there.")
    ],
    roster: Annotated[
        Path | None,
        typer.Option(help="CSV file: student and, optionally, name, due, submitted."),
    ] = None,
    due: Annotated[str, typer.Option(help="Due date, such as 2026-11-30T23:59.")] = "",
    late_policy: Annotated[
        str, typer.Option(help="none, zero, or percent deducted: 10/day, 5/hour max 50.")
    ] = "none",
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of submissions to grade at the same time.")
    ] = 1,
    cell_timeout: Annotated[float, _limit(1, "S", "Time limit for a cell, in seconds.")] = 120,
    timeout: Annotated[float, _limit(1, "S", "Time limit for a submission, in seconds.")] = 900,
    memory: Annotated[float, _limit(0.5, "GIB", "Memory limit for a submission, in GiB.")] = 8,
    sandbox: Annotated[
        str,
        typer.Option(help="auto or bwrap: always use a sandbox. none: only for code you trust."),
    ] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Grade submissions again that were graded before.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="STUDENT", help="Grade only this student. Repeatable."),
    ] = None,
) -> None:
    """Grade submissions of a lab: a gradebook, feedback for each student, a summary for you.

    Each submission's answers run in a copy of the lab's own notebook, in a sandbox. First, the
    grader tests the lab: the reference must get all points, and the notebook as handed out none.
    Finished results are saved, so an interrupted run continues where it stopped.

    Exit codes: 0 all were graded, 1 some could not be graded, 2 bad input, 3 the test of the lab
    failed, 130 you stopped it.

    Example: parlab grade 01_mpi class/ --out grades/ --roster class.csv --jobs 4
    """
    from parlab_staff.gradebook.command import GradeOptions
    from parlab_staff.gradebook.command import grade as run
    from parlab_staff.grading.run import Limits

    limits = Limits(cell_timeout, timeout, int(memory * 2**30))
    options = GradeOptions(
        lab, submissions, out, roster, due, late_policy, jobs, limits, sandbox, force,
        only or (),
    )  # fmt: skip
    raise typer.Exit(run(options))
