"""After a learner's slip, the message says what is wrong and in which line."""

import re
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import torch_works_and_keeps

pytestmark = pytest.mark.usefixtures("held_with_torch")


REFUSED = {
    "if rank == 1:\n    raise SystemExit(3)": (
        "rank 1: SystemExit: 3\n  line 3: raise SystemExit(3)"
    ),
    "raise ExceptionGroup('both', [ValueError(1), OSError(2)])": (
        "both (2 sub-exceptions)\n"
        "  line 2: raise ExceptionGroup('both', [ValueError(1), OSError(2)])\n"
        "  ValueError: 1\n  OSError: 2"
    ),
    "class Odd:\n    def __repr__(self): raise ValueError('no text')\nOdd()": "ValueError: no text",
    "import asyncio\nawait asyncio.sleep(0)": "asyncio.run",
    "from parlab.checks import mpi as check\ncheck.ring_shift(ring_shift)": (
        "NameError: name 'ring_shift' is not defined\n"
        "  line 3: check.ring_shift(ring_shift)\n"
        "  First run the cell of exercise ring_shift above, which defines ring_shift"
    ),
    "raise RuntimeError(f'Could not resolve the process group registered under the name {rank}')": (
        "all ranks: RuntimeError: Could not resolve the process group registered under the name …\n"
        "  line 2: raise RuntimeError("
    ),
    "raise RuntimeError('Could not resolve the process group')": (
        "  This group has ended. Rerun the cells that make the group, mesh, or model"
    ),
    "raise RuntimeError('ab' * 1_000_000)": "1,995,000 characters left out",
    "if rank == 2:\n    MPI.COMM_WORLD.Abort(3)\ncomm.Barrier()": (
        "rank 2: RuntimeError: Abort(3) would end all ranks, and their variables would be lost. In "
        "a rank cell, raise an error instead. In a script, Abort works.\n"
        "  line 3: MPI.COMM_WORLD.Abort(3)\n"
    ),
    "comm.Split(rank % 2).Abort()": "all ranks: RuntimeError: Abort(0) would end all ranks",
    "input('How many? ')": "A rank cannot ask for input. Write the value into the cell.",
}
# Cells below other magics, in which the sixth line fails or waits.
BELOW = {
    "%%time": "x = 2\n\ndef f():\n    {}\nf()",
    "%%timeit -n1 -r1": "x = 2\n\ndef f():\n    {}\nf()",
    "%%capture shown": "x = 2\n\ndef f():\n    {}\nf()",
    "%%capture shown\n%%time": "x = 2\ndef f():\n    {}\nf()",
}


def test_a_check_on_some_ranks_does_not_wait_for_the_others(notebook: Notebook) -> None:
    code = "from parlab.checks import mpi as check\ncheck.predict_ring(str)"
    for targets, ranks in {"1": "rank 1", "0:3": "ranks 0-2"}.items():
        ran = notebook.run(f"%%px --targets {targets}\n{code}")
        assert ran.error == "RankFailed"
        assert f"needs all ranks, but this cell runs only on {ranks}. Run it" in ran.message
    assert "wrong_type" in notebook.run(f"%%px\n{code}").message, "on all ranks, it runs"
    torch_works_and_keeps(notebook)


@pytest.mark.parametrize("magics", cases(BELOW, {"%%timeit -n1 -r1", "%%capture shown\n%%time"}))
def test_lines_below_other_magics_are_those_of_the_notebook(
    notebook: Notebook, magics: str
) -> None:
    cell = f"{magics}\n{BELOW[magics]}"
    ran = notebook.run("%%px\n" + cell.format("x / 0 or 1 / 0"))
    assert ran.message == (
        "all ranks: ZeroDivisionError: division by zero\n"
        "  line 6 of f: x / 0 or 1 / 0\n  line 7: f()"
    )
    assert "sys.std" not in ran.text
    ran = notebook.run("%%px --timeout 1\n" + cell.format("comm.recv(source=rank)"))
    place = "line 6 of f: comm.recv(source=rank)  (called from line 7: f())"
    assert f"ranks 0-3  {place}" in ran.message
    torch_works_and_keeps(notebook)


@pytest.mark.parametrize("code", REFUSED)
def test_the_message_says_what_is_wrong(notebook: Notebook, code: str) -> None:
    ran = notebook.run(f"%%px\n{code}")
    assert ran.error == "RankFailed"
    assert REFUSED[code] in ran.message
    assert ran.text == "", "all of it is in the message"
    torch_works_and_keeps(notebook)


def test_await_works_as_its_message_says(notebook: Notebook) -> None:
    shown = notebook.run("%%px\nimport asyncio\nawait asyncio.sleep(0)").message
    (call,) = re.findall("`(concurrent[^`]+)`", shown)
    ran = notebook.run(
        "%%px\nimport asyncio, concurrent.futures\n"
        f"async def main():\n    await asyncio.sleep(0)\n    return 5\n{call}"
    )
    assert ran.text == "[all ranks] 5\n", ran.message


def test_a_cell_magic_may_follow_px(notebook: Notebook) -> None:
    ran = notebook.run("%%px\n%%capture shown\nprint(1)\nin_it = 2")
    assert ran.status == "ok", ran.message
    ran = notebook.run("%%px\nprint(shown.stdout.strip(), in_it)")
    assert ran.text == "[all ranks] 1 2\n"


def test_a_rank_stuck_at_the_end_of_a_with_block_shows_its_first_error(
    notebook: Notebook,
) -> None:
    ran = notebook.run(
        "%%px --timeout 1\nclass Waits:\n    def __enter__(self): pass\n"
        "    def __exit__(self, *_): comm.recv(source=rank)\n\n"
        "with Waits():\n    raise KeyError('mine')"
    )
    assert "ranks 0-3  line 4 of __exit__: " in ran.message
    assert "(while handling KeyError: 'mine' (line 7))" in ran.message


def test_a_rank_that_was_freed_twice_does_not_show_the_first_time(notebook: Notebook) -> None:
    wait = "    comm.recv(source=rank)\n"
    ran = notebook.run(f"%%px --timeout 1\ntry:\n{wait}finally:\n{wait}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert "ranks 0-3  line " in ran.message and "while handling" not in ran.message


def test_the_message_does_not_say_that_a_learners_own_comm_works(notebook: Notebook) -> None:
    ran = notebook.run("%%px --timeout 1\ncomm = comm.Dup()\ncomm.recv(source=rank)")
    assert "Your own communicator `comm` ended: rerun the cell that makes it." in ran.message
    assert "`comm` works" not in ran.message
    assert notebook.run("%%px\nfrom parlab.rank import comm").status == "ok"
    torch_works_and_keeps(notebook)


def test_the_result_of_a_freed_call_is_not_shown(notebook: Notebook) -> None:
    ran = notebook.run(
        "%%px --timeout 1\nimport sys\n"
        "def waits():\n    try: comm.recv(source=rank)\n    except MPI.Exception: pass\n"
        "    print('err', file=sys.stderr)\n    return 'what it gave'\nwaits()"
    )
    assert ran.error == "DeadlineExceeded", ran.message
    assert "what it gave" not in ran.text
    # On a busy machine, one rank may be interrupted after it printed. That rank's text is shown.
    assert "[all ranks] err" not in ran.text


def test_after_finalize_the_ranks_are_replaced_and_the_message_says_why(notebook: Notebook) -> None:
    ran = notebook.run("%%px\nprint('before')\nMPI.Finalize()")
    assert ran.error == "RankDied"
    assert "called MPI.Finalize" in ran.message and "New ranks are starting" in ran.message
    assert ran.text == "[all ranks] before\n"


def test_torch_that_ends_a_rank_is_explained(notebook: Notebook) -> None:
    ran = notebook.run("%%px\ndist.all_reduce(torch.ones(5 if rank else 5000))")
    assert "SIGABRT" in ran.message
    assert "tensors of different sizes or types to the same call" in ran.message


def test_an_impossible_repair_is_explained_after_the_cells_own_error(
    notebook: Notebook, tmp_path: Path
) -> None:
    flag = tmp_path / "begun"
    busy = notebook.run(f"%%px --noblock --targets 3\nos.mkdir({str(flag)!r})\nwhile True: pass")
    assert busy.status == "ok", busy.message
    wait_until(flag.exists, 60, "the cell")
    ran = notebook.run("%%px --targets 0:3\ncomm.Free()\n1 / 0")
    assert ran.error == "RankDied"
    assert "ZeroDivisionError" in ran.message
    assert "This cell freed or revoked `comm`" in ran.message
    assert "rank 3 still ran a `--noblock` cell" in ran.message
    assert "These variables are lost: `held`" in ran.message
