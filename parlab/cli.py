"""The command `parlab`. Each subcommand imports what it needs when it runs: `--help` is quick."""

import os
import sys
from typing import Annotated

import typer

from parlab.venv import ROOT

app = typer.Typer(
    help="A course in training large models in parallel: a book, and labs on real ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


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


@app.command()
def book(
    edition: Annotated[
        str, typer.Option(help="full, or student: no solution in its pages, links and search.")
    ] = "full",
) -> None:
    """Build the HTML book into _build/html."""
    from parlab.book import build

    raise typer.Exit(build(edition))


@app.command(context_settings=PASS_ON | {"help_option_names": []})
def notebooks(context: typer.Context) -> None:
    """Derive labs and solutions from solutions/*.py, and run what changed."""
    from parlab.authoring import main

    raise typer.Exit(main(context.args))


def main() -> None:
    """The entry point; what the user has to mend is one line, without a traceback."""
    try:
        app()
    except ValueError as error:
        print(f"parlab: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
