"""Starts ranks in a notebook, and tells whether they work, keep their variables, and end."""

import os

import psutil

from parlab.cluster.freeing import PATIENCE_SECONDS
from tests.support.kernel import Notebook, Ran

DEADLINE = 1  # a rank that could not begin yet on a busy machine gets more time
CONTROLLER = "print(cluster.current().ranks.processes.cluster.controller.pid)"


def started(notebook: Notebook, n: int) -> None:
    ran = notebook.run(f"from parlab import cluster\ncluster.start({n})")
    assert ran.status == "ok", ran.message
    assert ran.text.startswith(f"{n} rank")


def processes_of(notebook: Notebook) -> list[psutil.Process]:
    """Return all processes of the notebook's ranks, even if they are not the kernel's children."""
    ran = notebook.run(
        "from psutil import Process\n"
        "processes = cluster.current().ranks.processes\n"
        "heads = [processes.cluster.controller.pid,\n"
        "         processes.cluster.engine_set.pid, processes.cleanup.pid]\n"
        "print(*heads, *(c.pid for head in heads for c in Process(head).children(recursive=True)))"
    )
    assert ran.status == "ok", ran.message
    return [psutil.Process(int(pid)) for pid in ran.text.split()]


def alive(processes: list[psutil.Process]) -> list[str]:
    left = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.NoSuchProcess:
            continue
    return left


def works_and_keeps(notebook: Notebook, held: bool) -> None:
    """Require that all ranks work, and that they still have, or have lost, the variable `held`."""
    ran = notebook.run("%%px\nprint(comm.allreduce(1), globals().get('held'))")
    assert ran.status == "ok", ran.message
    assert ran.text == (
        "".join(f"[rank {rank}] 4 {rank * 11}\n" for rank in range(4))
        if held
        else "[all ranks] 4 None\n"
    )


def torch_works_and_keeps(notebook: Notebook) -> None:
    """Require that torch and MPI work on all ranks, which still have the variable `held`."""
    ran = notebook.run(
        "%%px\nx, y = torch.ones(1), torch.ones(1)\n"
        "dist.all_reduce(x)\ndist.all_reduce(y, group=group)\n"
        "print(comm.allreduce(held), MPI.COMM_SELF.allreduce(1), int(x + y))"
    )
    assert ran.text == "[all ranks] 6 1 8\n", ran.message


def in_time(notebook: Notebook, ran: Ran, deadline: float) -> bool:
    """Return True if the cell ended within two seconds of its deadline.

    A busy machine gets more time, in proportion to the processes for each core and to the time that
    an empty cell takes. On it, the ranks themselves may get more time before they are given up.
    """
    share = max(1.0, os.getloadavg()[0] / os.cpu_count())
    patience = PATIENCE_SECONDS if share > 1 else 0
    limit = deadline + patience + 2 * share + 20 * notebook.run("%%px\npass").seconds
    return ran.seconds < limit


def shown(notebook: Notebook, sent: str, text: str) -> None:
    """Wait until the cell has shown `text`."""
    while True:
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == sent:
            assert message["content"].get("execution_state") != "idle", f"{text!r} was not shown"
            if text in message["content"].get("text", ""):
                return


def press(notebook: Notebook, times: int) -> None:
    for _ in range(times):
        notebook.interrupt()
