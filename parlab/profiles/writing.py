"""Writes the ipyparallel profiles for `parlab profile`."""

import re
from pathlib import Path

from IPython.paths import get_ipython_dir

# The formats of `sbatch`: minutes, minutes:seconds, hours:minutes:seconds, days-hours, …
TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
HOST = re.compile(r"([A-Za-z0-9][\w.-]*):([1-9]\d*)")
# The variables that set the network interface for messages between nodes, one for each library.
INTERFACE_VARIABLES = ("OMPI_MCA_btl_tcp_if_include", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

HEAD = '''"""Read by `cluster.start(…, profile="{name}")`. `parlab profile` wrote this."""

c = get_config()  # noqa: F821, ipyparallel's

# You may edit this file.
c.Cluster.engine_launcher_class = "{launcher}"
c.Cluster.controller_ip = "*"  # the ranks connect to the notebook from other machines
'''
SLURM = '''
# The batch job: {{n}} is the number of ranks. Lines that your site needs, such as `module load`, go
# before `exec`. Double all other braces: ${{{{HOME}}}}.
c.SlurmRanks.batch_template = """#!/bin/bash
#SBATCH --job-name=parlab
#SBATCH --export=ALL
#SBATCH --output={{output_file}}
#SBATCH --ntasks={{n}}
{options}exec {{mpiexec}} -n {{n}} {{program_and_args}}
"""
'''
SSH = """
c.SshRanks.hosts = {hosts}
c.SshRanks.ssh_command = {ssh_command!r}
"""
ENVIRONMENT = """
# The network interface for messages between nodes (MPI, Gloo, and NCCL).
c.{launcher}.environment = {environment}
"""


def write_slurm(
    name: str,
    *,
    partition: str = "",
    account: str = "",
    time: str = "",
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    cpus_per_rank: int | None = None,
    gpus_per_node: int | None = None,
    interface: str = "",
    sbatch: list[str] | None = None,
    force: bool = False,
) -> Path:
    """Write the profile `name` for Slurm, and return its file. `sbatch` is a list of more options.

    Raises ValueError if an option is invalid, or if the profile exists and `force` is False.
    """
    if time and not TIME.fullmatch(time):
        raise ValueError(f"--time {time}: Slurm takes minutes, hours:minutes:seconds or days-hours")
    for option in sbatch or []:
        if not option.startswith("-"):
            raise ValueError(
                f"--sbatch {option}: must be an option of sbatch, such as --sbatch=--qos=long"
            )
    given = {
        "partition": partition,
        "account": account,
        "time": time,
        "nodes": nodes,
        "ntasks-per-node": ranks_per_node,
        "cpus-per-task": cpus_per_rank,
        # Per node, not per task: for Slurm, all ranks that mpiexec starts on a node are one task.
        "gpus-per-node": gpus_per_node,
    }
    options = [f"--{key}={_word(key, value)}" for key, value in given.items() if value]
    lines = [f"#SBATCH {_line(option)}\n" for option in [*options, *(sbatch or [])]]
    return _write(name, "slurm.SlurmRanks", SLURM.format(options="".join(lines)), interface, force)


def write_ssh(
    name: str,
    hosts: list[str],
    *,
    ssh_command: str = "ssh -o BatchMode=yes",
    interface: str = "",
    force: bool = False,
) -> Path:
    """Write the profile `name` for machines that ssh reaches, and return its file.

    `hosts` are written as `name:ranks`. Raises ValueError if one has another form or occurs twice,
    or for the reasons of `write_slurm`.
    """
    ranks_on(hosts)
    if not ssh_command.strip():
        raise ValueError('--ssh: must be the command that logs in, such as "ssh -p 2222"')
    if ":" in ssh_command:
        raise ValueError(
            "--ssh: mpiexec cuts the command at a colon. Put this option into ~/.ssh/config instead"
        )
    text = SSH.format(hosts=hosts, ssh_command=ssh_command)
    return _write(name, "ssh.SshRanks", text, interface, force)


def ranks_on(hosts: list[str]) -> int:
    """Return the total number of ranks. Raises ValueError for the same hosts as `write_ssh`."""
    counts: dict[str, int] = {}
    for host in hosts:
        read = HOST.fullmatch(host)
        if read is None:
            raise ValueError(f"{host}: must be a machine and its number of ranks, such as gpu01:4")
        if read[1] in counts:
            raise ValueError(f"{read[1]} is listed twice")
        counts[read[1]] = int(read[2])
    return sum(counts.values())


def _word(key: str, value: object) -> str:
    if re.search(r"\s", str(value)):
        raise ValueError(f"--{key} {value}: one word, without spaces")
    return str(value)


def _line(text: str) -> str:
    """Escape `text` for a template, which is itself a string in triple quotes."""
    if re.search(r'[\n\\"]', text):
        raise ValueError(f'{text!r}: one line, without \\ and "')
    return text.replace("{", "{{").replace("}", "}}")


def _write(name: str, launcher: str, text: str, interface: str, force: bool) -> Path:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"--name {name}: must begin with a letter or digit; then letters, digits, and . _ -"
        )
    file = Path(get_ipython_dir()) / f"profile_{name}" / "ipcluster_config.py"
    if file.exists() and not force:
        raise ValueError(
            f"{file} exists already. Use --force to overwrite it, or --name to choose another name"
        )
    text = HEAD.format(name=name, launcher=f"parlab.profiles.{launcher}") + text
    if interface:
        if not NAME.fullmatch(interface):
            raise ValueError(f"--interface {interface}: the name of one, as `ip address` shows it")
        environment = dict.fromkeys(INTERFACE_VARIABLES, interface)
        text += ENVIRONMENT.format(launcher=launcher.rpartition(".")[2], environment=environment)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file
