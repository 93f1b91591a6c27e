"""What a learner does to the ranks by mistake costs one line, and none of their variables."""

import pytest

from tests.notebook import Notebook

MENDED = {
    "comm.Revoke()": "as good as new",
    "comm.Free()": "as good as new",
    "if rank == 1:\n    comm.Free()": "as good as new",
    "comm.Disconnect()": "as good as new",
    "group.comm.Free()": "as good as new",
    "dist.destroy_process_group()": "default process group. It was made again",
}
STUCK = {
    "in a list": "comms = [comm.Split(rank % 2)]\ncomms[0].recv(source=comms[0].rank)",
    "in a dict": "comms = {'a': comm.Dup()}\ncomms['a'].recv(source=rank)",
    "in an object": "class Held: pass\nh = Held(); h.inner = comm.Dup()\nh.inner.recv(source=rank)",
    "of this rank alone": "MPI.COMM_SELF.recv(source=0)",
}
REFUSED = {
    "class Odd:\n    def __repr__(self): raise ValueError('no text')\nOdd()": "ValueError: no text",
    "import asyncio\nawait asyncio.sleep(0)": "asyncio.run",
    "raise RuntimeError('ab' * 1_000_000)": "1,995,000 characters left out",
}


@pytest.fixture(autouse=True)
def held(notebook: Notebook) -> None:
    ran = notebook.run(
        "%%px\nimport torch, torch.distributed as dist\nfrom parlab.rank import group\nheld = rank"
    )
    assert ran.status == "ok", ran.message


def works_and_keeps(notebook: Notebook) -> None:
    ran = notebook.run(
        "%%px\nx, y = torch.ones(1), torch.ones(1)\n"
        "dist.all_reduce(x)\ndist.all_reduce(y, group=group)\n"
        "print(comm.allreduce(held), MPI.COMM_SELF.allreduce(1), int(x + y))"
    )
    assert ran.text == "[all ranks] 6 1 8\n", ran.message


@pytest.mark.parametrize("code", MENDED)
def test_what_a_cell_broke_is_mended(notebook: Notebook, code: str) -> None:
    ran = notebook.run(f"%%px\n{code}")
    assert ran.status == "ok", ran.message
    assert MENDED[code] in ran.text
    works_and_keeps(notebook)


@pytest.mark.parametrize("place", STUCK)
def test_communicators_are_found_where_the_lab_keeps_them(notebook: Notebook, place: str) -> None:
    ran = notebook.run(f"%%px --timeout 2\n{STUCK[place]}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert "variables are intact" in ran.message
    works_and_keeps(notebook)


@pytest.mark.parametrize("code", REFUSED)
def test_the_message_says_what_is_wrong(notebook: Notebook, code: str) -> None:
    ran = notebook.run(f"%%px\n{code}")
    assert ran.error == "RankFailed"
    assert REFUSED[code] in ran.message
    works_and_keeps(notebook)


def test_a_communicator_that_was_freed_does_not_cost_the_ranks(notebook: Notebook) -> None:
    """No call of MPI may see its handle any more: that ends the process."""
    ran = notebook.run(
        "%%px --timeout 2\nif rank == 1:\n    comm.Free()\nelse:\n    comm.Barrier()"
    )
    assert ran.error == "DeadlineExceeded", ran.message
    assert "variables are intact" in ran.message
    works_and_keeps(notebook)


def test_after_finalize_the_ranks_are_replaced_and_it_is_said_why(notebook: Notebook) -> None:
    ran = notebook.run("%%px\nprint('before')\nMPI.Finalize()")
    assert ran.error == "RankDied"
    assert "called MPI.Finalize" in ran.message and "started again" in ran.message
    assert ran.text == "[all ranks] before\n"


def test_a_mend_that_is_not_possible_says_why_beside_the_cells_own_error(
    notebook: Notebook,
) -> None:
    busy = notebook.run("%%px --noblock --targets 3\nwhile True: pass")
    assert busy.status == "ok", busy.message
    ran = notebook.run("%%px --targets 0:3\ncomm.Free()\n1 / 0")
    assert ran.error == "RankDied"
    assert "ZeroDivisionError" in ran.message
    assert "This cell freed or revoked `comm`" in ran.message
    assert "rank 3 still ran a `--noblock` cell" in ran.message
    assert "Gone: `held`" in ran.message
