"""The command `parlab`. Each subcommand imports what it needs when it runs, so `--help` is fast."""

import os
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from parlab.runtime.paths import ROOT

app = typer.Typer(
    help="A course on training large models in parallel: a book, and labs on real ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASS_ON)
def lab(context: typer.Context) -> None:
    """Open JupyterLab with the list of labs. Other options are passed to JupyterLab.

    Example: parlab lab --no-browser --port 8899. Press Ctrl-C twice to stop it.

    If the course's folder is read-only, the labs are copied to ~/parlab and opened there.
    """
    from parlab.runtime.environment import harmful, without_harmful
    from parlab.setup.jupyterlab import command, folders
    from parlab.setup.learner_folder import own_folder

    if problem := folders.problem():
        raise ValueError(problem)
    root = own_folder(ROOT)
    if root != ROOT:
        print(f"parlab lab: {ROOT} is read-only, so your labs are in {root}/labs", file=sys.stderr)
    # Serve the whole course, so that a lab's links to the book work. Browsing starts in labs/.
    arguments = command(root, f"--ServerApp.preferred_dir={root / 'labs'}", *context.args)
    for name, effect in harmful().items():
        print(f"parlab lab: ignoring {name}={os.environ[name]}, because {effect}", file=sys.stderr)
    os.execve(arguments[0], arguments, without_harmful())


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check this machine and report what each missing component means for the labs.

    Exit code 0: the labs can run. 1: they cannot, and the last line says what to do.
    """
    from parlab.setup import doctor

    raise typer.Exit(doctor.main(as_json))


profile = typer.Typer(
    help="Write an ipyparallel profile, which starts ranks on other machines.",
    no_args_is_help=True,
)
app.add_typer(profile, name="profile")
ProfileName = Annotated[
    str, typer.Option(help="Name of the profile, for cluster.start(profile=…).")
]
Interface = Annotated[
    str, typer.Option(help="Network interface for messages between nodes, such as eth0 or ib0.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing profile.")]


@profile.command()
def slurm(
    name: ProfileName = "slurm",
    partition: Annotated[
        str, typer.Option(help="Partition of the jobs. Default: the site's default.")
    ] = "",
    account: Annotated[str, typer.Option(help="Account to charge.")] = "",
    time: Annotated[str, typer.Option(help="Time limit of the ranks' job.")] = "02:00:00",
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes to request.")] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of ranks on a node.")
    ] = None,
    cpus_per_rank: Annotated[
        int | None, typer.Option(min=1, help="Number of cores for each rank.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="Number of GPUs to request on each node.")
    ] = None,
    interface: Interface = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Another option for sbatch. Repeatable."),
    ] = None,
    force: Force = False,
) -> None:
    """Write a profile to start ranks as a Slurm batch job.

    Example: parlab profile slurm --ranks-per-node 4 --gpus-per-node 4 --sbatch=--qos=short
    """
    from parlab.profiles.writing import write_slurm

    file = write_slurm(
        name, partition=partition, account=account, time=time, nodes=nodes,
        ranks_per_node=ranks_per_node, cpus_per_rank=cpus_per_rank, gpus_per_node=gpus_per_node,
        interface=interface, sbatch=sbatch, force=force,
    )  # fmt: skip
    if shutil.which("sbatch") is None:
        print("`sbatch` was not found: open the labs on a machine that has Slurm's commands.")
    _print_written(file, name, (nodes or 2) * (ranks_per_node or 2))


@profile.command()
def ssh(
    hosts: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST:RANKS…", help="Hosts and their numbers of ranks, such as gpu01:4 gpu02:4."
        ),
    ],
    name: ProfileName = "ssh",
    command: Annotated[
        str,
        typer.Option("--ssh", metavar="COMMAND", help="Command that logs in, with its options."),
    ] = "ssh -o BatchMode=yes",
    interface: Interface = "",
    force: Force = False,
) -> None:
    """Write a profile to start ranks on machines that ssh reaches without a password.

    The machines must share the course's folder with this one, under the same path.

    Example: parlab profile ssh gpu01:4 gpu02:4
    """
    from parlab.profiles.writing import ranks_on, write_ssh

    file = write_ssh(name, hosts, ssh_command=command, interface=interface, force=force)
    _print_written(file, name, ranks_on(hosts))


def _print_written(file: Path, name: str, ranks: int) -> None:
    print(f"{file} is written. In a lab's first cell:")
    print(f'    cluster.start({ranks}, profile="{name}")')


def add_installed_commands() -> None:
    """Add the commands of installed packages, such as those for authors and instructors.

    A student's copy of the course lists them in its metadata but does not contain them.
    """
    for entry in entry_points(group="parlab.commands"):
        try:
            add_commands = entry.load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != entry.module.partition(".")[0]:
                raise
        else:
            add_commands(app)


def _use_utf8() -> None:
    """Restart this command in Python's UTF-8 mode if the locale has another encoding.

    File names, program output, and students' text are then UTF-8 on all systems. Programs that the
    command starts, such as JupyterLab and its kernels, inherit the mode.
    """
    os.environ["PYTHONUTF8"] = "1"
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def main() -> None:
    """Run the command line. Print an error that the user can fix as one line, not a traceback."""
    _use_utf8()
    # nbformat's jsonschema would take a second to load a grammar for URLs that no notebook needs.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    add_installed_commands()
    try:
        app()
    except ValueError as error:
        print(f"parlab: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
