"""The command `parlab`. Each subcommand imports what it needs when it runs: `--help` is quick."""

import math
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from parlab.files import ROOT

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
) -> None:
    """Say what this machine has, and what each missing part means for the labs.

    Ends with 0 when the labs can run, 1 when not; the last line says what to do.
    """
    from parlab import doctor

    raise typer.Exit(doctor.main(as_json))


profile = typer.Typer(
    help="Write an ipyparallel profile, which starts ranks on other machines.",
    no_args_is_help=True,
)
app.add_typer(profile, name="profile")
ProfileName = Annotated[str, typer.Option(help="What cluster.start(profile=…) takes.")]
Interface = Annotated[
    str, typer.Option(help="Network interface for messages between nodes, as eth0 or ib0.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a profile that is there.")]


@profile.command()
def slurm(
    name: ProfileName = "slurm",
    partition: Annotated[str, typer.Option(help="The site's usual one if none.")] = "",
    account: Annotated[str, typer.Option(help="Who pays.")] = "",
    time: Annotated[str, typer.Option(help="After so long Slurm ends the ranks.")] = "02:00:00",
    nodes: Annotated[int | None, typer.Option(min=1, help="Exactly so many.")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    cpus_per_rank: Annotated[int | None, typer.Option(min=1, help="Cores for each.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="Of each.")] = None,
    interface: Interface = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Another option of sbatch's. Repeatable."),
    ] = None,
    force: Force = False,
) -> None:
    """Ranks as a batch job of Slurm.

    For example: parlab profile slurm --ranks-per-node 4 --gpus-per-node 4 --sbatch=--qos=short
    """
    from parlab.profiles.writing import write_slurm

    file = write_slurm(
        name, partition=partition, account=account, time=time, nodes=nodes,
        ranks_per_node=ranks_per_node, cpus_per_rank=cpus_per_rank, gpus_per_node=gpus_per_node,
        interface=interface, sbatch=sbatch, force=force,
    )  # fmt: skip
    if shutil.which("sbatch") is None:
        print("There is no `sbatch` here: open the labs on a machine that has Slurm's commands.")
    _print_written(file, name, (nodes or 2) * (ranks_per_node or 2))


@profile.command()
def ssh(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST:RANKS…", help="As gpu01:4 gpu02:4.")],
    name: ProfileName = "ssh",
    command: Annotated[
        str, typer.Option("--ssh", metavar="COMMAND", help="What logs in, with its options.")
    ] = "ssh -o BatchMode=yes",
    interface: Interface = "",
    force: Force = False,
) -> None:
    """Ranks on machines that ssh reaches, without a password; no batch system.

    They share the course's folder with this machine, under the same path.

    For example: parlab profile ssh gpu01:4 gpu02:4
    """
    from parlab.profiles.writing import ranks_on, write_ssh

    file = write_ssh(name, hosts, ssh_command=command, interface=interface, force=force)
    _print_written(file, name, ranks_on(hosts))


def _print_written(file: Path, name: str, ranks: int) -> None:
    print(f"{file} is written. In a lab's first cell:")
    print(f'    cluster.start({ranks}, profile="{name}")')


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


@needs("answers", name="try")
def try_(
    exercise: Annotated[str, typer.Argument(help="Its key, as ring_shift.")],
    answers: Annotated[
        list[str] | None,
        typer.Argument(help="Names of answers, keys of mistakes, files; the reference if none."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The reference and all answers.")] = False,
    ranks: Annotated[int, typer.Option(help="How many.")] = 4,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Small changes of the reference; which ones pass?")
    ] = False,
) -> None:
    """Run an exercise's check on answers to it, and print what a learner would see.

    For example: parlab try ring_shift no_wait; or: parlab try ring_shift my_answer.py.
    """
    from parlab.answers.command import main
    from parlab.mutation.command import try_one

    raise typer.Exit(try_one(exercise) if mutants else main(exercise, answers or [], every, ranks))


@needs("handout")
def release(
    lab: Annotated[str, typer.Argument(help="01_mpi, 01 or mpi.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make; or an empty one.")],
) -> None:
    """Write what to hand out to students: one lab, and all that it needs to run.

    Neither a solution nor a hidden check is in it, nor the grader. Students need two commands, and
    hand in one file; the README.md in it tells them.

    For example: parlab release 01_mpi --out handout/
    """
    from parlab.handout import write_handout

    folder = write_handout(lab, out)
    print(f"{folder} is ready: hand it out as it is. Students run `make lab` in it.")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter("a number that ends")
    return value


@needs("gradebook")
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
        float,
        typer.Option(min=1, callback=_finite, metavar="S", help="Seconds that a cell may take."),
    ] = 120,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, callback=_finite, metavar="S", help="Seconds that a submission may take."
        ),
    ] = 900,
    memory: Annotated[
        float,
        typer.Option(
            min=0.5, callback=_finite, metavar="GIB", help="Memory that a submission may take."
        ),
    ] = 8,
    sandbox: Annotated[
        str, typer.Option(help="auto and bwrap: only in a sandbox. none: code you trust.")
    ] = "auto",
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
    from parlab.gradebook.command import GradeOptions
    from parlab.gradebook.command import grade as run
    from parlab.grading.running import Limits

    limits = Limits(cell_timeout, timeout, int(memory * 2**30))
    options = GradeOptions(
        lab, submissions, out, roster, due, late_policy, jobs, limits, sandbox, force,
        only or (),
    )  # fmt: skip
    raise typer.Exit(run(options))


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
