"""After a learner's slip, the ranks are repaired or freed, and keep their variables."""

import pytest

from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import torch_works_and_keeps

pytestmark = pytest.mark.usefixtures("held_with_torch")


REPAIRED = {
    "comm.Revoke()": "works again",
    "comm.Free()": "works again",
    "if rank == 1:\n    comm.Free()": "works again",
    "comm.Disconnect()": "works again",
    "group.comm.Free()": "works again",
    "MPI.COMM_SELF.Free()": "works again",
    "import sys\nsys.stdout.close()\nsys.stdout = None": "sys.stdout was restored",
    "import io, sys\nsys.stderr = io.StringIO()": "sys.stderr was restored",
    "dist.destroy_process_group()": "default process group. It was created again",
}
# Cells that leave messages, and the text about them.
LEFT = {
    "comm.bcast(rank, root=rank % 2)": "collective calls in this cell did not match",
    "comm.gather(rank, root=0 if rank % 2 else 1)": "collective calls in this cell did not match",
    "if rank == 0:\n    comm.send('left', dest=1, tag=5)": "from rank 0 to rank 1 (tag 5)",
    "request = MPI.COMM_WORLD.Isend(bytearray(10**6), dest=(rank + 1) % 4)": (
        "from rank 3 to rank 0 (tag 0), from rank 0 to rank 1 (tag 0)"
    ),
    "comm.isend('left', dest=(rank + 1) % 4)\n1 / 0": "",
    "comm.bcast(rank, root=rank % 2)\n1 / 0": "",
    "comm.allreduce(rank, op=lambda a, b: 1 / 0)": "",
}
STUCK = {
    "in a list": "comms = [comm.Split(rank % 2)]\ncomms[0].recv(source=comms[0].rank)",
    "in a dict": "comms = {'a': comm.Dup()}\ncomms['a'].recv(source=rank)",
    "in an object": "class Held: pass\nh = Held(); h.inner = comm.Dup()\nh.inner.recv(source=rank)",
    "of this rank alone": "MPI.COMM_SELF.recv(source=0)",
}


@pytest.mark.parametrize("code", REPAIRED)
def test_what_a_cell_broke_is_repaired(notebook: Notebook, code: str) -> None:
    ran = notebook.run(f"%%px\n{code}")
    assert ran.status == "ok", ran.message
    assert REPAIRED[code] in ran.text
    torch_works_and_keeps(notebook)


@pytest.mark.parametrize("code", LEFT)
def test_messages_that_a_cell_left_do_not_reach_the_next(notebook: Notebook, code: str) -> None:
    ran = notebook.run(f"%%px\n{code}")
    assert ran.status == ("error" if "1 / 0" in code else "ok"), ran.message
    assert LEFT[code] in ran.text
    ran = notebook.run(
        "%%px\nprint(comm.sendrecv(rank, dest=(rank + 1) % 4, source=(rank - 1) % 4) + 4 - rank)"
    )
    assert ran.text == "[rank 0] 7\n[ranks 1-3] 3\n", ran.message
    torch_works_and_keeps(notebook)


def test_a_cell_on_some_ranks_may_send_to_a_later_one(notebook: Notebook) -> None:
    assert notebook.run("%%px --targets 0\ncomm.send('kept', dest=1)").text == ""
    assert notebook.run("%%px --targets 1\ncomm.recv(source=0)").text == "[rank 1] 'kept'\n"


@pytest.mark.parametrize("place", STUCK)
def test_communicators_are_found_where_the_lab_keeps_them(notebook: Notebook, place: str) -> None:
    ran = notebook.run(f"%%px --timeout 1\n{STUCK[place]}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert "variables are intact" in ran.message
    torch_works_and_keeps(notebook)


def test_a_deep_recursion_in_a_large_namespace_is_freed(notebook: Notebook) -> None:
    """The search for communicators in the frames must not delay the revocation of `comm`."""
    ran = notebook.run(
        "%%px --timeout 2\nmany = {f'many_{i}': [0] * 100 for i in range(500)}\n"
        "globals().update(many)\n"
        "def f(n): return f(n - 1) if n else comm.recv(source=rank)\nf(300)"
    )
    assert ran.error == "DeadlineExceeded", ran.message
    assert "variables are intact" in ran.message
    ran = notebook.run("%%px\nfor name in [*many, 'many']: del globals()[name]")
    assert ran.status == "ok", ran.message
    torch_works_and_keeps(notebook)


@pytest.mark.parametrize(
    "handler",
    cases(
        [
            "signal.SIG_IGN",
            "signal.SIG_DFL",
            "signal.default_int_handler",
            "lambda *_: None",
            "lambda *_: 1 / 0",
        ],
        {"signal.SIG_IGN", "lambda *_: 1 / 0"},
    ),
)
def test_a_cell_that_took_the_signal_of_interrupts_is_freed(
    notebook: Notebook, handler: str
) -> None:
    ran = notebook.run(
        "%%px --timeout 1\nimport signal\n"
        f"signal.signal(signal.SIGINT, {handler})\n"
        "if rank % 2:\n    while True: pass\ntime.sleep(1000)"
    )
    assert ran.error == "DeadlineExceeded", ran.message
    assert "variables are intact" in ran.message
    torch_works_and_keeps(notebook)


def test_ranks_survive_after_the_lab_freed_comm(notebook: Notebook) -> None:
    """Any MPI call on the freed handle would end the process."""
    ran = notebook.run(
        "%%px --timeout 1\nif rank == 1:\n    comm.Free()\nelse:\n    comm.Barrier()"
    )
    assert ran.error == "DeadlineExceeded", ran.message
    assert "variables are intact" in ran.message
    torch_works_and_keeps(notebook)
