"""The stop button, while ranks run a cell or recover from it."""

import os
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.notebook_ranks import in_time, press, shown, works_and_keeps

NIGHTLY = pytest.mark.nightly
pytestmark = pytest.mark.usefixtures("held")


def send_and_wait_until_running(notebook: Notebook, folder: Path, code: str) -> str:
    """Send a cell with the line `code`, which calls `begins()`. Wait until all ranks are there."""
    flags = [folder / f"running{rank}" for rank in range(4)]
    for flag in flags:
        flag.touch()
        os.utime(flag, (0, 0))
    # Use times of files, because a rank cannot send output while C code holds Python's lock.
    ran = notebook.run(
        "%%px\nimport functools\n"
        f"begins = functools.partial(os.utime, {str(folder)!r} + f'/running{{rank}}')"
    )
    assert ran.status == "ok", ran.message
    sent = notebook.send(f"%%px --timeout 100\n{code}")
    wait_until(lambda: all(flag.stat().st_mtime for flag in flags), 60, "the cell")
    return sent


STATES = {
    "waiting in MPI": "begins() or comm.recv(source=rank)",
    "in a loop": "while True: begins()",
    "printing": "while True: print(begins(), flush=True)",
    "asleep": "begins() or time.sleep(1000)",
}


# Nightly runs also try two presses in states that resemble a loop or a call of MPI.
@pytest.mark.parametrize(
    ("state", "presses"),
    [
        *((state, 1) for state in STATES),
        ("waiting in MPI", 2),
        ("in a loop", 2),
        pytest.param("printing", 2, marks=NIGHTLY),
        pytest.param("asleep", 2, marks=NIGHTLY),
    ],
)
def test_stop_while_ranks_are_at_work(
    notebook: Notebook, tmp_path: Path, state: str, presses: int
) -> None:
    sent = send_and_wait_until_running(notebook, tmp_path, STATES[state])
    press(notebook, presses)
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted"
    assert f"ranks 0-3  line 2: {STATES[state]}" in ran.message
    works_and_keeps(notebook, held=True)
    assert in_time(notebook, ran, 1)


SLOW_RECOVERY = """%%px
import time
from pathlib import Path
from parlab.rank.engine import ended
usual = ended.revoked
def slow(namespace):
    Path({flag!r}).touch()
    time.sleep(3)
    return usual(namespace)
ended.revoked = slow
"""


def test_a_second_press_while_ranks_recover_keeps_the_variables(
    notebook: Notebook, tmp_path: Path
) -> None:
    flag = tmp_path / "recovers"
    ran = notebook.run(SLOW_RECOVERY.format(flag=str(flag)))
    assert ran.status == "ok", ran.message
    sent = send_and_wait_until_running(notebook, tmp_path, STATES["in a loop"])
    press(notebook, 1)
    wait_until(flag.exists, 60, "the recovery")
    press(notebook, 1)
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted"
    notebook.run("%%px\nended.revoked = usual")
    works_and_keeps(notebook, held=True)


@pytest.mark.parametrize("presses", [2, pytest.param(1, marks=NIGHTLY)])
def test_stop_after_a_rank_failed_while_others_continue(notebook: Notebook, presses: int) -> None:
    sent = notebook.send("%%px --timeout 100\nif rank == 1:\n    1 / 0\nwhile True: pass")
    shown(notebook, sent, "rank 1 failed: ZeroDivisionError")
    press(notebook, presses)
    ran = notebook.wait(sent)
    assert ran.error == "RankFailed"
    assert "rank 1: ZeroDivisionError" in ran.message
    assert "ranks 0, 2, 3  line 4: while True: pass" in ran.message
    works_and_keeps(notebook, held=True)
    assert in_time(notebook, ran, 1)


@pytest.mark.parametrize("when", ["in a cell", "after it"])
def test_stop_ends_a_loop_that_catches_exceptions(
    notebook: Notebook, tmp_path: Path, when: str
) -> None:
    flag = tmp_path / "running"
    if when == "after it":  # while the notebook examines how it ended
        notebook.run(
            "import pathlib\nfrom parlab.cluster import magics\nrepair = magics.repair\n"
            "def pressed(*arguments):\n    repair(*arguments)\n"
            f"    pathlib.Path({str(flag)!r}).touch()\n    time.sleep(1)\n"
            "import time\nmagics.repair = pressed"
        )
    wait = (
        "pass"
        if when == "after it"
        else f"open({str(flag)!r}, 'w').close(); comm.recv(source=rank)"
    )
    try:
        sent = notebook.send(
            "for turn in range(3):\n    try:\n"
            f"        get_ipython().run_cell_magic('px', '--timeout 100', {wait!r})\n"
            "    except Exception as error:\n        print('went on after', error)"
        )
        wait_until(flag.exists, 60, "the cell")
        notebook.interrupt()
        ran = notebook.wait(sent)
    finally:
        if when == "after it":
            notebook.run("magics.repair = repair")
    assert (ran.error in ("RankInterrupted", "KeyboardInterrupt"), ran.text) == (True, ""), (
        ran.message
    )
    works_and_keeps(notebook, held=True)


def test_another_press_gives_up_ranks_that_do_not_stop(notebook: Notebook, tmp_path: Path) -> None:
    """Ranks that compute get ten seconds, and the cell says so."""
    sent = send_and_wait_until_running(notebook, tmp_path, "begins() or sum(range(10**13))")
    notebook.interrupt()
    shown(notebook, sent, "Press stop to replace them now")
    notebook.interrupt()
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted"
    assert "ranks 0-3  line 2: begins() or sum(range(10**13))" in ran.message
    assert "No rank could be stopped." in ran.message
    works_and_keeps(notebook, held=False)
    assert in_time(notebook, ran, 1)
