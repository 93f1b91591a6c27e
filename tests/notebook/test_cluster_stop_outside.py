"""The stop button, while ranks run no cell: before and after a cell, and as they start or end."""

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.notebook_ranks import (
    alive,
    press,
    processes_of,
    shown,
    started,
    works_and_keeps,
)

NIGHTLY = pytest.mark.nightly
pytestmark = pytest.mark.usefixtures("held")


@pytest.mark.parametrize("presses", [2, pytest.param(1, marks=NIGHTLY)])
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
