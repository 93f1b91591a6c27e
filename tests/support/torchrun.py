"""Runs an example with torchrun, as its first lines describe, with rehearsed GPUs or with none."""

import os
import re
import subprocess
import sys

from parlab.runtime.paths import ROOT
from tests import rehearsal

EXAMPLES = ROOT / "examples"
DEADLINE = 300


def documented(example: str) -> list[str]:
    """Return the command for one machine in an example's first lines."""
    text = (EXAMPLES / f"{example}.py").read_text(encoding="utf-8")
    return re.search(r"^    torchrun (.*)$", text, re.MULTILINE)[1].split()


def renamed(command: list[str], name: str) -> list[str]:
    """Return a command that runs `command` where the machine has another name.

    If this process may not create such a namespace, return the command unchanged.
    """
    alone = f'ip link set lo up && hostname {name} && exec "$@"'
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--uts", "sh", "-c", alone, "sh"]
    may = subprocess.run([*unshare, "true"], capture_output=True).returncode == 0
    return [*unshare, *command] if may else command


def torchrun(
    ranks: int, example: str, *arguments: str, gpus: int = 0, host: str = "no-such-host"
) -> str:
    """Return the output of an example on `ranks` ranks, on a machine with rehearsed GPUs.

    Without GPUs, the machine's own name is `host`. By default, it cannot be resolved.
    """
    machine = rehearsal.environment(gpus, protect=example != "07_triton") if gpus else {}
    words = documented(example)
    words[words.index("--nproc-per-node") + 1] = str(ranks)
    command = [sys.executable, "-m", "torch.distributed.run", *words, *arguments]
    ran = subprocess.run(
        command if gpus else renamed(command, host),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | machine,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
