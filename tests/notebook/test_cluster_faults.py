"""If ranks raise errors or die, the message names them, and the next cell works on every rank."""

import os
import signal

import psutil
import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import CONTROLLER, works_and_keeps

pytestmark = pytest.mark.usefixtures("held")


def test_one_rank_raises_while_others_wait(notebook: Notebook):
    ran = notebook.run("%%px\nprint('before')\nif rank == 1:\n    1 / 0\ncomm.allreduce(1)")
    assert ran.error == "RankFailed"
    assert ran.text == "[all ranks] before\n"
    assert "rank 1: ZeroDivisionError: division by zero\n  line 4: 1 / 0" in ran.message
    assert "ranks 0, 2, 3  line 5: comm.allreduce(1)" in ran.message
    assert ran.seconds < 30, "it does not wait for the deadline"
    works_and_keeps(notebook, held=True)


@pytest.mark.nightly
def test_a_rank_that_still_computes_may_finish(notebook: Notebook):
    ran = notebook.run(
        "%%px\nif rank == 1:\n    raise ValueError('early')\n"
        "while not comm.Is_revoked():  # until the failure of rank 1 is handled\n    pass\n"
        "until = time.monotonic() + 4\nwhile time.monotonic() < until:\n    pass\nheld = held + 1"
    )
    assert "rank 1: ValueError: early" in ran.message
    assert "Ranks 0, 2, 3 then finished the cell. The ranks are free" in ran.message
    ran = notebook.run("%%px\nprint(held)")
    assert ran.text == "[rank 0] 1\n[rank 1] 11\n[rank 2] 23\n[rank 3] 34\n"


def test_different_errors_are_listed_and_equal_ones_shown_once(notebook: Notebook):
    ran = notebook.run("%%px\nassert rank > 1, 'low'\nraise ValueError(rank // 4)")
    assert ran.message.count("AssertionError") == 1
    assert "ranks 0, 1: AssertionError: low" in ran.message
    assert "ranks 2, 3: ValueError: 0" in ran.message
    works_and_keeps(notebook, held=True)


def test_an_import_error_on_all_ranks_is_shown_once(notebook: Notebook):
    ran = notebook.run("%%px\nimport no_such_package")
    assert ran.message == (
        "all ranks: ModuleNotFoundError: No module named 'no_such_package'\n"
        "  line 2: import no_such_package"
    )
    works_and_keeps(notebook, held=True)


def test_a_syntax_error_shows_its_line(notebook: Notebook):
    ran = notebook.run("%%px\nx = (1,\n")
    assert ran.message.startswith("all ranks: SyntaxError")
    assert "line 2: x = (1," in ran.message


DEATHS = {
    "os._exit": ("os._exit(3)", "Rank 2 died: exit status 3"),
    "os._exit as if all were well": ("os._exit(0)", "Rank 2 died: exit status 0"),
    "a segmentation fault": (
        "import ctypes; ctypes.string_at(0)",
        "Rank 2 died: signal 11 (SIGSEGV) at line 3: import ctypes; ctypes.string_at(0)",
    ),
    "the kernel's out-of-memory killer": (
        "os.kill(os.getpid(), 9)",
        "Rank 2 died: signal 9 (SIGKILL)",
    ),
    "the end of a batch job": ("os.kill(os.getpid(), 15)", "Rank 2 died: signal 15 (SIGTERM)"),
}


@pytest.mark.parametrize(
    "name",
    cases(
        DEATHS, {"os._exit as if all were well", "a segmentation fault", "the end of a batch job"}
    ),
)
def test_a_rank_that_dies_is_named_and_the_set_replaced(notebook: Notebook, name: str):
    code, expected = DEATHS[name]
    ran = notebook.run(f"%%px\nif rank == 2:\n    {code}\ncomm.Barrier()")
    assert (ran.status, ran.error) == ("error", "RankDied"), ran.message
    assert expected in ran.message
    assert "ranks 0, 1, 3  line 4: comm.Barrier()" in ran.message or "line" in ran.message
    assert "`held`" in ran.message, "it names the lost variable"
    assert ran.seconds < 30, "it does not wait for the deadline"
    works_and_keeps(notebook, held=False)


def test_a_rank_that_ends_itself_does_not_wait_for_the_others(notebook: Notebook):
    """Its end is noticed in its cell or, if the cell ends first, after it."""
    ran = notebook.run("%%px\nif rank == 1:\n    quit()")
    shown = ran.message
    if ran.status == "ok":
        wait_until(
            lambda: notebook.run("cluster.current().channel.deaths()").text.startswith("{1:"),
            60,
            "the end of rank 1",
        )
    ran = notebook.run("%%px\nprint(comm.allreduce(1))")
    assert ran.status == "ok", ran.message
    shown += ran.text
    assert "These variables are lost: `held`" in shown
    # If its answer came before its end was noticed, the kernel knows what it called.
    assert "Rank 1 died: " in shown or "Rank 1 called quit()" in shown
    assert ran.text.endswith("[all ranks] 4\n")


@pytest.mark.nightly
def test_a_death_is_not_reported_with_a_line_of_an_earlier_cell(notebook: Notebook):
    ran = notebook.run("%%px --timeout 1\ncomm.recv(source=rank)")
    assert "line 2: comm.recv(source=rank)" in ran.message
    ran = notebook.run("%%px\nif rank == 2:\n    os.kill(os.getpid(), 9)\ncomm.Barrier()")
    assert "Rank 2 died: signal 9 (SIGKILL)\n" in ran.message


def test_a_rank_killed_between_cells_is_noticed_by_the_next(notebook: Notebook):
    pids = notebook.run("%%px\nprint(os.getpid())").text
    pid = int(pids.split("[rank 1]")[1].split()[0])
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: "1: -9" in notebook.run("cluster.current().channel.deaths()").text, 60, "the death"
    )
    ran = notebook.run("%%px\nprint(comm.allreduce(1))")
    assert ran.status == "ok", ran.message
    assert "Rank 1 died: signal 9 (SIGKILL)" in ran.text
    assert "These variables are lost: `held`" in ran.text
    assert "[all ranks] 4" in ran.text


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("when", cases(["between cells", "in a cell"], {"between cells"}))
def test_a_controller_that_ended_is_reported_and_the_ranks_replaced(notebook: Notebook, when: str):
    controller = psutil.Process(int(notebook.run(CONTROLLER).text))
    if when == "between cells":
        controller.kill()
        wait_until(lambda: has_ended(controller), 60, "the controller's end")
        ran = notebook.run("%%px\nprint(globals().get('held'))")
        assert ran.text.endswith("[all ranks] None\n")
        shown = ran.text
    else:
        sent = notebook.send("%%px --timeout 100\nprint('it runs')\ncomm.recv(source=rank)")
        while "it runs" not in notebook.next_text(sent):
            pass
        controller.kill()
        ran = notebook.wait(sent)
        assert ran.error == "RankDied" and "ranks 0-3  line 3: comm.recv" in ran.message
        shown = ran.message
    assert "(ipyparallel's controller) has ended" in shown
    assert "These variables are lost: `held`" in shown
    works_and_keeps(notebook, held=False)


@pytest.mark.nightly
def test_ten_megabytes_from_every_rank(notebook: Notebook):
    ran = notebook.run("%%px\nprint(str(rank) * 10_000_000)")
    assert ran.status == "ok", ran.message
    assert len(ran.text) < 400_000
    assert "characters left out; cluster.output(2) has all of it" in ran.text
    assert notebook.run("len(cluster.output(3))").text == "10000001"
    works_and_keeps(notebook, held=True)
