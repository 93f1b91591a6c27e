"""Cells that run in the background (`%%px --noblock`), and `%pxresult`."""

from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook


@pytest.fixture(autouse=True)
def held(notebook: Notebook) -> None:
    ran = notebook.run("%%px\nheld = rank")
    assert ran.status == "ok", ran.message


def test_its_output_is_shown_when_all_ranks_have_ended_it(notebook: Notebook) -> None:
    ran = notebook.run("%%px --noblock\ntime.sleep(1)\nprint(rank // 2)\nassert rank < 3")
    assert ran.status == "ok", ran.message
    ran = notebook.run("%pxresult")
    assert ran.text == "[ranks 0, 1] 0\n[ranks 2, 3] 1\n"
    assert ran.error == "RankFailed" and "rank 3: AssertionError" in ran.message


def test_its_result_raises_with_the_kind_of_the_error(notebook: Notebook) -> None:
    assert notebook.run("%%px --noblock -o later\nx = 0\n1 / x").status == "ok"
    ran = notebook.run("later.get()")
    assert "[3:execute]:\nZeroDivisionError: division by zero\n  line 3: 1 / x" in ran.message


def test_stop_leaves_it_running(notebook: Notebook) -> None:
    assert notebook.run("%%px --noblock --targets 1\ncomm.recv(source=0)").status == "ok"
    waiting = notebook.send("print('it runs')\nget_ipython().run_line_magic('pxresult', '')")
    while "it runs" not in notebook.next_text(waiting):
        pass
    notebook.interrupt()
    ran = notebook.wait(waiting)
    assert ran.error == "RankInterrupted" and "The cell continues to run" in ran.message
    assert notebook.run("%%px --targets 0\ncomm.send('end', dest=1)").status == "ok"
    assert notebook.run("%pxresult").status == "ok"


def test_its_error_is_shown_before_the_next_cell(notebook: Notebook) -> None:
    assert notebook.run("%%px --noblock\nif rank == 2: assert 1 > 2, 'unheard'").status == "ok"
    ran = notebook.run("cluster.current().background[0].result.wait()")
    assert ran.status == "ok", ran.message
    ran = notebook.run("%%px\nprint(rank // 4)")
    assert "`--noblock` failed:\nrank 2: AssertionError: unheard" in ran.text
    assert ran.text.endswith("[all ranks] 0\n")
    assert notebook.run("%%px\nprint(rank // 4)").text == "[all ranks] 0\n", (
        "it is reported only once"
    )


def test_a_cell_that_waits_for_it_is_not_reported_at_its_line(
    notebook: Notebook, tmp_path: Path
) -> None:
    flag = tmp_path / "begun"
    begins = f"os.mkdir({str(flag)!r} + str(rank))"
    ran = notebook.run(f"%%px --noblock\nif rank % 3 == 0:\n    {begins} or comm.recv(source=rank)")
    assert ran.status == "ok", ran.message
    wait_until(lambda: all(Path(f"{flag}{rank}").exists() for rank in (0, 3)), 60, "the cell")
    ran = notebook.run("%%px --timeout 2 --targets 0,1\nif rank == 1:\n    comm.recv(source=rank)")
    assert ran.error == "DeadlineExceeded"
    expected = (
        "had not begun this cell, because it ran an earlier `--noblock` cell, which was stopped as "
        "well, at line 3"
    )
    assert f"rank 0  {expected}: {begins} or comm.recv(source=rank)" in ran.message
    assert "rank 1  line 3: comm.recv(source=rank)" in ran.message
    assert (
        "Other cells were stopped, too, because all ranks are needed: rank 3 at line 3"
        in ran.message
    )
    ran = notebook.run("%%px\nprint(comm.allreduce(held))")
    assert ran.text == "[all ranks] 6\n", "its end is reported only once"


def test_a_death_in_it_is_reported_with_the_lost_variables(notebook: Notebook) -> None:
    ran = notebook.run("%%px --noblock\nlater = 1\nif rank == 1: os._exit(3)\ncomm.Barrier()")
    assert ran.status == "ok", ran.message
    ran = notebook.run("%pxresult", timeout=60)
    assert (
        ran.error == "RankDied" and "Some ranks that ran this cell no longer exist" in ran.message
    )
    ran = notebook.run("%%px\nprint(comm.allreduce(1))")
    assert "Rank 1 died: exit status 3" in ran.text
    assert "`held`" in ran.text and "`later`" in ran.text
    assert ran.text.endswith("[all ranks] 4\n")


def test_autopx_is_refused_and_the_error_says_what_to_use(notebook: Notebook) -> None:
    ran = notebook.run("%autopx")
    assert ran.error == "UsageError" and "begin each cell with %%px" in ran.text
    assert notebook.run("1 + 1").text == "2"
