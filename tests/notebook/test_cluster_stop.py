"""The stop button, in every state of the ranks."""

import os
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.notebook.test_cluster_faults import in_time, works_and_keeps
from tests.notebook.test_cluster_lifetime import alive, processes_of, started
from tests.support.kernel import Notebook

NIGHTLY = pytest.mark.nightly
PRESSES = pytest.mark.parametrize("presses", [2, pytest.param(1, marks=NIGHTLY)])


@pytest.fixture(autouse=True)
def held(notebook: Notebook) -> None:
    ran = notebook.run("%%px\nheld = rank * 11")
    assert ran.status == "ok", ran.message


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


@PRESSES
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


@PRESSES
def test_stop_while_new_ranks_start(notebook: Notebook, presses: int) -> None:
    ran = notebook.run("%%px\nif rank == 3: os._exit(2)")
    assert ran.error == "RankDied"
    # The cell reports when it runs. An earlier interrupt would not end any cell.
    sent = notebook.send("print('it runs')\nget_ipython().run_cell_magic('px', '', 'print(rank)')")
    while "it runs" not in str(notebook.client.get_iopub_msg(timeout=60)["content"].get("text")):
        pass
    press(notebook, presses)
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted", ran.message
    assert "they continue to start" in ran.message.lower()
    works_and_keeps(notebook, held=False)


# Presses stop the given number of times, as soon as ranks are being ended.
PRESSING = """
import os, signal, threading
from parlab import cluster
cluster.start(4)

def press(times):
    try:
        while cluster.current():
            pass
    except cluster.ClusterError:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
"""


PRESS_WHEN_READY = """
import os, signal
from parlab import cluster
class Presses(list):
    def append(self, notify):
        super().append(notify)
        os.kill(os.getpid(), signal.SIGINT)
        cluster._current.on_change = list(self)
cluster._current.on_change = Presses(cluster._current.on_change)
"""


def test_a_press_just_before_a_cell_begins_stops_it(notebook: Notebook) -> None:
    assert notebook.run(PRESS_WHEN_READY).status == "ok"
    ran = notebook.run("%%px\nheld = 'the cell has begun'")
    assert ran.error == "RankInterrupted"
    assert ran.message.endswith("The cell did not begin on any rank."), ran.message
    assert notebook.run("%%px\nprint(held == rank * 11)").text == "[all ranks] True\n"


# Presses once, before the code of the next cell.
PRESS_EARLY = """
import os, signal
names = {{"kill": os.kill, "self": os.getpid(), "stop": signal.SIGINT, "shell": get_ipython()}}
exec('''
pressed = []
def press(*_):
    if not pressed:
        pressed.append(True)
        kill(self, stop)
{calls}
''', names)
"""
CALLS = {
    "ipykernel": "usual = shell.transform_cell\n"
    "shell.transform_cell = lambda code: press() or usual(code)",
    "a callback": "shell.events.register('pre_run_cell', press)",
}


@pytest.mark.parametrize("caller", CALLS)
@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("%%px\ncomm.recv(source=rank)", "RankInterrupted"),
        ("while True: pass", "KeyboardInterrupt"),
    ],
)
def test_a_press_before_the_code_of_a_cell_runs_stops_the_cell(
    notebook: Notebook, caller: str, cell: str, error: str
) -> None:
    """IPython loses exceptions of callbacks, and ipykernel would not send the cell's reply."""
    assert notebook.run(PRESS_EARLY.format(calls=CALLS[caller])).status == "ok"
    ran = notebook.run(cell, timeout=30)
    assert ran.error == error, ran.message
    works_and_keeps(notebook, held=True)


# ipykernel calls this method between the end of a cell's code and the message about it.
PRESS_AT_THE_END = """
import os, signal
names = {"kill": os.kill, "self": os.getpid(), "stop": signal.SIGINT, "of": get_ipython().kernel}
exec('''
calls, method = [], of.finish_metadata
def press(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        of.finish_metadata = method
        kill(self, stop)
    return method(*arguments)
of.finish_metadata = press
''', names)
"""


def test_a_press_just_after_a_cell_does_not_keep_it_from_ending(notebook: Notebook) -> None:
    assert notebook.run(PRESS_AT_THE_END).status == "ok"
    assert notebook.run("%%px\nprint(rank * 0)", timeout=30).text == "[all ranks] 0\n"
    assert notebook.run("print(len(names['calls']))").text == "2\n"


def test_code_after_a_rank_cell_can_be_stopped(notebook: Notebook) -> None:
    sent = notebook.send("%px pass\nprint('begun', flush=True)\nwhile True: pass")
    shown(notebook, sent, "begun")
    press(notebook, 1)
    assert notebook.wait(sent, 30).error == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("call", "presses"),
    [
        ("cluster.start(4)", 2),
        pytest.param("cluster.stop()", 1, marks=NIGHTLY),
        pytest.param("cluster.stop()", 2, marks=NIGHTLY),
        pytest.param("cluster.start(4)", 1, marks=NIGHTLY),
    ],
)
def test_stop_while_ranks_are_ended(call: str, presses: int) -> None:
    """No ranks are left, and none are started."""
    notebook = Notebook()
    try:
        assert notebook.run(PRESSING).status == "ok"
        processes = processes_of(notebook)
        ran = notebook.run(f"threading.Thread(target=press, args=({presses},)).start()\n{call}")
        assert ran.error == "RankInterrupted", ran.message
        assert "No ranks are running any more" in ran.message
        wait_until(lambda: not alive(processes), 60, "the end of every process of the ranks")
        started(notebook, 2)
        ran = notebook.run("%%px\nfrom parlab.rank import comm\nprint(comm.allreduce(1))")
        assert ran.text == "[all ranks] 2\n", ran.message
    finally:
        notebook.shutdown()


@pytest.mark.nightly
def test_ranks_are_replaced_while_others_still_start(notebook: Notebook) -> None:
    ran = notebook.run(
        "cluster.current().replace()\ncluster.current().replace()\ncluster.restart()"
    )
    assert ran.status == "ok", ran.message
    works_and_keeps(notebook, held=False)
