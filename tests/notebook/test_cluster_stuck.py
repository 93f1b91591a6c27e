"""Stuck ranks are freed in time and keep their variables, and the message names their lines."""

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import DEADLINE, in_time, works_and_keeps

pytestmark = pytest.mark.usefixtures("held")


STUCK = {
    "a receive that nobody sends to": (
        "if rank == 2:\n    comm.recv(source=0)",
        ["rank 2  line 3: comm.recv(source=0)"],
    ),
    "a buffer receive on every rank": (
        "import numpy as np\ncomm.Recv(np.zeros(4), source=(rank + 1) % 4)",
        ["ranks 0-3  line 3: comm.Recv("],
    ),
    "two large sends that wait for each other": (
        "import numpy as np\nbig = np.zeros(10_000_000)\ncomm.Send(big, dest=rank ^ 1)\n"
        "comm.Recv(big, source=rank ^ 1)",
        ["ranks 0-3  line 4: comm.Send(big, dest=rank ^ 1)"],
    ),
    "a collective that one rank skips": (
        "if rank != 1:\n    comm.allreduce(rank)",
        ["ranks 0, 2, 3  line 3: comm.allreduce(rank)"],
    ),
    "mismatched collectives": (
        "import numpy as np\nif rank == 0:\n    comm.Barrier()\nelif rank == 3:\n"
        "    comm.bcast(None, root=1)\nelse:\n    comm.Allreduce(np.ones(5), np.ones(5))",
        ["rank 0     line 4: comm.Barrier()", "ranks 1, 2  line 8", "rank 3"],
    ),
    "a wait on a request": (
        "request = comm.irecv(source=0, tag=9)\nrequest.wait()",
        ["ranks 0-3  line 3: request.wait()"],
    ),
    "a wait for several large messages": (
        "import numpy as np\nbig, other = np.zeros(100_000), np.empty(100_000)\n"
        "sent = comm.Isend(big, dest=rank ^ 1)\n"
        "MPI.Request.Waitall([sent, comm.Irecv(other, source=(rank + 2) % 4)])",
        ["ranks 0-3  line 5: MPI.Request.Waitall"],
    ),
    "a wait for any of several large messages": (
        "import numpy as np\nbig, other = np.zeros(100_000), np.empty(100_000)\n"
        "sent = comm.Isend(big, dest=rank ^ 1)\n"
        "MPI.Request.Waitany([sent, comm.Irecv(other, source=(rank + 2) % 4)])",
        ["ranks 0-3  line 5: MPI.Request.Waitany"],
    ),
    "MPI.COMM_WORLD instead of comm": (
        "MPI.COMM_WORLD.recv(source=(rank + 1) % 4)",
        ["ranks 0-3  line 2: MPI.COMM_WORLD.recv"],
    ),
    "small sends to a rank that has gone on": (
        "import numpy as np\nif rank == 0:\n    while True: comm.Send(np.zeros(10), dest=1)",
        ["rank 0  line 4: while True: comm.Send(np.zeros(10), dest=1)"],
    ),
    "a small synchronous send to a rank that has gone on": (
        "import numpy as np\nif rank == 0:\n    comm.Ssend(np.zeros(10), dest=1)",
        ["rank 0  line 4: comm.Ssend(np.zeros(10), dest=1)"],
    ),
    "a duplicate that the others' barrier matches": (
        "if rank == 3:\n    comm.Dup()\nelse:\n    comm.Ibarrier()\n    comm.recv(source=rank)",
        ["rank 3  line 3: comm.Dup()", "ranks 0-2  line 6: comm.recv(source=rank)"],
    ),
    "an endless loop": ("while True: x = 1", ["ranks 0-3  line 2: while True: x = 1"]),
    "a search in C that looks for signals": (
        "import re\nif rank != 1:\n    re.match('(a+)+$', 'a' * 60 + 'b')",
        ["ranks 0, 2, 3  line 4: re.match("],
    ),
    "an endless loop that polls": (
        "while not comm.Iprobe(source=0, tag=77):\n    pass",
        ["ranks 0-3  line 2: while not comm.Iprobe"],
    ),
    "a sleep on one rank": (
        "if rank == 3:\n    time.sleep(1000)",
        ["rank 3  line 3: time.sleep(1000)"],
    ),
    "a recursion of hundreds of calls": (
        "def deep(n):\n    return deep(n - 1) if n else comm.recv(source=rank)\n\ndeep(300)",
        [
            "ranks 0-3  line 3 of deep: return deep(n - 1) if n else comm.recv(source=rank)",
            "(called from line 5: deep(300))",
        ],
    ),
    "a function of the cell": (
        "def shift(x):\n    return comm.recv(source=rank)\n\nshift(1)",
        [
            "ranks 0-3  line 3 of shift: return comm.recv(source=rank)",
            "(called from line 5: shift(1))",
        ],
    ),
}
CALLED_FROM_C = """%%px --timeout 8
class Mute:
    def write(self, text): pass
    def flush(self): pass

mute = Mute()
while True: print("x", file=mute, flush=True)
"""
ASK = """
import threading
answers = []

def ask():
    for _ in range(400):
        answers.append(cluster.current().channel.stacks([0, 1, 2, 3]))

asker = threading.Thread(target=ask)
asker.start()
"""


@pytest.mark.nightly
def test_reading_the_stack_of_a_rank_never_ends_it(notebook: Notebook) -> None:
    """faulthandler reads frames while they change. It ended a rank about once in 100 times here."""
    notebook.run(ASK)
    ran = notebook.run(CALLED_FROM_C)
    assert "this cell" not in ran.message, ran.message
    assert "variables are intact" in ran.message, ran.message
    lacking = "sum('_run_module_as_main' not in text for one in answers for text in one.values())"
    assert notebook.run(f"asker.join()\nprint(len(answers), {lacking})").text == "400 0\n"


# One example of each kind: a receive, sends, collectives, a request, Python code, a function.
ALWAYS = {
    "a receive that nobody sends to",
    "a small synchronous send to a rank that has gone on",
    "two large sends that wait for each other",
    "mismatched collectives",
    "a duplicate that the others' barrier matches",
    "a wait on a request",
    "an endless loop",
    "a search in C that looks for signals",
    "a function of the cell",
}


@pytest.mark.parametrize("name", cases(STUCK, ALWAYS))
def test_stuck_ranks_are_named_freed_and_keep_their_variables(notebook: Notebook, name: str):
    code, expected = STUCK[name]
    ran = notebook.run(f"%%px --timeout {DEADLINE}\n{code}")
    assert (ran.status, ran.error) == ("error", "DeadlineExceeded"), ran.message
    for text in expected:
        assert " ".join(text.split()) in " ".join(ran.message.split())
    assert in_time(notebook, ran, DEADLINE)
    works_and_keeps(notebook, held=True)


STOPPED = {
    "between cells": (
        "%%px --timeout {} --targets 0\nwhile True: pass",
        "rank 0  line 2: while True: pass",
    ),
    "in the cell": (
        "%%px --timeout {}\nimport signal\n"
        "if rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\ncomm.Barrier()",
        "rank 1         stopped by a signal (SIGSTOP)",
    ),
}


@pytest.mark.parametrize("when", STOPPED)
def test_a_rank_that_a_signal_stopped_is_named_and_continues(notebook: Notebook, when: str):
    code, place = STOPPED[when]
    if when == "between cells":
        rank_1 = notebook.run("print(cluster.current().channel.ranks[1].pid)").text
        os.kill(int(rank_1), signal.SIGSTOP)
    ran = notebook.run(code.format(DEADLINE))
    assert ran.error == "DeadlineExceeded", ran.message
    assert place in ran.message
    assert "A signal had stopped rank 1, and parlab continued it." in ran.message
    works_and_keeps(notebook, held=True)
    assert in_time(notebook, ran, DEADLINE)


@pytest.mark.nightly
def test_a_function_that_was_sent_to_a_rank_ends_with_a_cell(notebook: Notebook):
    ran = notebook.run(
        "import time\ndef endless():\n    while True: time.sleep(0.1)\n"
        "sent = cluster.current().client[1].apply_async(endless)"
    )
    assert ran.status == "ok", ran.message
    ran = notebook.run("%%px --timeout 2 --targets 0,1\nif rank == 0:\n    comm.recv(source=1)")
    assert "rank 1  is busy with a function that was sent to it (`view.apply`)" in ran.message
    assert "variables are intact" in ran.message
    works_and_keeps(notebook, held=True)
    assert in_time(notebook, ran, 2)


@pytest.mark.nightly
def test_a_communicator_of_the_lab_that_ended_is_named(notebook: Notebook):
    assert notebook.run("%%px\npair = comm.Split(0)").status == "ok"
    ran = notebook.run(f"%%px --timeout {DEADLINE}\nif rank != 1:\n    pair.Barrier()")
    assert ran.error == "DeadlineExceeded"
    assert "ranks 0, 2, 3  line 3: pair.Barrier()" in ran.message
    assert "Your own communicator `pair` ended" in ran.message
    ran = notebook.run(f"%%px --timeout {DEADLINE}\nif rank != 1:\n    comm.Barrier()")
    assert "Your own" not in ran.message, "it is named only once"
    assert notebook.run("%%px\npair = comm.Split(0)").status == "ok"
    ran = notebook.run(f"%%px --timeout {DEADLINE}\nif rank != 1:\n    pair.Barrier()")
    assert "Your own communicator `pair` ended" in ran.message, "a new one is named again"
    works_and_keeps(notebook, held=True)


def test_a_noblock_cell_is_stopped_with_the_others(notebook: Notebook, tmp_path: Path):
    flag = tmp_path / "begun"
    ran = notebook.run(
        f"%%px --noblock --targets 1\nearly = os.mkdir({str(flag)!r}) or 1\nwhile True: pass"
    )
    assert ran.status == "ok", ran.message
    wait_until(flag.exists, 60, "the cell")
    ran = notebook.run("%%px --timeout 2 --targets 0,2,3\ncomm.Barrier()")
    assert ran.error == "DeadlineExceeded"
    assert (
        "Other cells were stopped, too, because all ranks are needed: rank 1 at line 3"
        in ran.message
    )
    assert in_time(notebook, ran, 2)
    works_and_keeps(notebook, held=True)
    assert notebook.run("%%px --targets 1\nearly").text == "[rank 1] 1\n"
