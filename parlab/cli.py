"""The command `parlab`. Each subcommand imports what it needs when it runs: `--help` is quick."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from parlab.venv import ROOT

app = typer.Typer(
    help="A course in training large models in parallel: a book, and labs on real ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def needs(part: str, **settings: Any) -> Any:
    """`app.command` for what needs `parlab.part`, which a student's copy does not have."""
    return app.command(hidden=find_spec(f"parlab.{part}") is None, **settings)


@app.command(context_settings=PASS_ON)
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the list of labs; further options go to JupyterLab.

    For example: parlab lab --no-browser --port 8899. Stop it with Ctrl-C, twice.
    """
    from parlab.jupyterlab import command

    # The whole course is served, so that a lab's links to the book work; browsing starts in labs/.
    arguments = command(ROOT, f"--ServerApp.preferred_dir={ROOT / 'labs'}", *context.args)
    os.execv(arguments[0], arguments)


@app.command()
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print it for a program to read.")
    ] = False,
    need: Annotated[
        list[str] | None,
        typer.Option(help="Look for this alone; say something only if it is missing. Repeatable."),
    ] = None,
) -> None:
    """Say what this machine has, and what each missing part means for the labs.

    Ends with 0 when the labs can run, 1 when not; the last line says what to do.
    """
    from parlab import doctor

    raise typer.Exit(doctor.require(need) if need else doctor.main(as_json))


@needs("book")
def book(
    edition: Annotated[
        str, typer.Option(help="full, or student: no solution in its pages, links and search.")
    ] = "full",
) -> None:
    """Build the HTML book into _build/html."""
    from parlab.book import build

    raise typer.Exit(build(edition))


@needs("authoring", context_settings=PASS_ON | {"help_option_names": []})
def notebooks(context: typer.Context) -> None:
    """Derive labs and solutions from solutions/*.py, and run what changed."""
    from parlab.authoring import main

    raise typer.Exit(main(context.args))


@needs("grading")
def release(
    lab: Annotated[str, typer.Argument(help="01_mpi, 01 or mpi.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make; or an empty one.")],
) -> None:
    """Write what to hand out to students: one lab, and all that it needs to run.

    Neither a solution nor a hidden check is in it, nor the grader. Students need two commands, and
    hand in one file; the README.md in it tells them.

    For example: parlab release 01_mpi --out handout/
    """
    from parlab.grading.release import release as write

    folder = write(lab, out)
    print(f"{folder} is ready: hand it out as it is. Students run `make lab` in it.")


@needs("grading")
def grade(
    lab: Annotated[str, typer.Argument(help="01_mpi, 01 or mpi; or an executed solution's path.")],
    submissions: Annotated[
        list[Path],
        typer.Argument(metavar="SUBMISSION…", help="A notebook, a student's folder, a class's."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for results and reports; kept between runs.")],
    roster: Annotated[
        Path | None, typer.Option(help="CSV with a column student; also name, due, submitted.")
    ] = None,
    due: Annotated[str, typer.Option(help="When it was due: 2026-11-30T23:59.")] = "",
    late_policy: Annotated[
        str, typer.Option(help="none, zero, or percent off: 10/day, 5/hour max 50.")
    ] = "none",
    jobs: Annotated[int, typer.Option(min=1, help="Submissions graded at the same time.")] = 1,
    cell_timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Seconds that a cell may take.")
    ] = 120,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Seconds that a submission may take.")
    ] = 900,
    memory: Annotated[
        float, typer.Option(min=0.5, metavar="GIB", help="Memory that a submission may take.")
    ] = 8,
    sandbox: Annotated[
        str, typer.Option(help="auto and bwrap: only in a sandbox. none: code you trust.")
    ] = "auto",
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="What failed, again with the reference's other exercises: a mistake costs once.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Grade again what was graded.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="STUDENT", help="Grade this one. Repeatable.")
    ] = None,
) -> None:
    """Grade submissions of a lab: a gradebook, feedback for each student, a summary for you.

    Each submission's answers run in a copy of the lab's own notebook, in a sandbox. First the lab
    proves itself: the reference gets all points and the notebook as handed out gets none. What is
    graded is kept, so an interrupted run goes on where it stopped.

    Ends with 0 when all were graded, 1 when some could not be, 2 for bad input, 3 when the lab
    did not prove itself, 130 when you stopped it.

    For example: parlab grade 01_mpi class/ --out grades/ --roster class.csv --jobs 4
    """
    from parlab.grading.command import Asked
    from parlab.grading.command import grade as run
    from parlab.grading.running import Limits

    limits = Limits(cell_timeout, timeout, int(memory * 2**30))
    asked = Asked(
        lab, submissions, out, roster, due, late_policy, jobs, limits, sandbox, isolate, force,
        only or (),
    )  # fmt: skip
    raise typer.Exit(run(asked))


def main() -> None:
    """The entry point; what the user has to mend is one line, without a traceback."""
    # nbformat's jsonschema would load a grammar for URLs, which no notebook needs, in a second.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    try:
        app()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("parlab."):
            raise
        print(f"parlab: this copy of the course comes without {error.name}", file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        print(f"parlab: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
