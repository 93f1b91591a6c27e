"""Ranks start even if ipyparallel's controller is slow or lacks a part, and its end is reported."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook, Ran
from tests.support.nightly import cases
from tests.support.notebook_ranks import alive, processes_of, started


@pytest.mark.nightly
def test_ranks_start_if_the_client_misses_their_registration(kernel: Notebook):
    """On a busy machine, engines may register just before the client's subscription begins."""
    keep = "import ipyparallel as ipp\nregister = ipp.Client._register_engine\n"
    kernel.run(f"{keep}ipp.Client._register_engine = lambda *_: None")
    try:
        started(kernel, 2)
    finally:
        kernel.run("ipp.Client._register_engine = register")


@pytest.mark.nightly
def test_ranks_start_if_the_controller_does_not_list_them():
    """The controller's process for heartbeats has ended, as if its port had been taken."""
    notebook = Notebook()
    ran = notebook.run(
        "import threading, psutil\n"
        "ended = threading.Event()\n"
        "def controllers():\n"
        "    for one in psutil.Process().children(recursive=True):\n"
        "        try:\n"
        "            if 'ipyparallel.controller' in one.cmdline():\n"
        "                yield one\n"
        "        except psutil.NoSuchProcess: pass\n"
        "def end_the_first():\n"
        "    while not ended.is_set():\n"
        "        found = {one.pid: one for one in controllers()}\n"
        "        for one in found.values():\n"
        "            if one.ppid() in found:\n"
        "                one.kill()\n"
        "                ended.set()\n"
        "threading.Thread(target=end_the_first, daemon=True).start()\n"
        "from parlab import cluster\n"
        "cluster.start(2)\n"
        "print('ended' if ended.is_set() else 'nothing was ended')"
    )
    assert ran.status == "ok", ran.message
    assert "2 ranks" in ran.text and "\nended" in ran.text, ran.text
    assert notebook.run("%%px\nprint(1)").text == "[all ranks] 1\n"
    processes = processes_of(notebook)
    notebook.shutdown()
    wait_until(lambda: not alive(processes), 60, "the end of every process of the ranks")


@pytest.fixture
def controller_met(kernel: Notebook) -> Iterator[Callable[[str], Ran]]:
    """Return a function that starts two ranks and runs code when their controller is listening."""

    def start(do: str) -> Ran:
        return kernel.run(
            "import os, threading, psutil\n"
            "from parlab import cluster\n"
            "from parlab.cluster.processes import Processes\n"
            "connect = Processes._connect\n"
            "def meet(self, *arguments):\n"
            "    controller = self.cluster.controller\n"
            "    while not all(map(os.path.exists, controller.connection_files.values())):\n"
            "        pass\n"
            "    controller = psutil.Process(controller.pid)\n"
            f"    {do}\n"
            "    return connect(self, *arguments)\n"
            "Processes._connect = meet\n"
            "cluster.start(2)"
        )

    yield start
    kernel.run("Processes._connect = connect")


@pytest.mark.nightly
def test_ranks_start_if_the_controller_is_too_busy_to_answer(kernel, controller_met):
    """By default, engines wait for five seconds, and a client for ten."""
    do = "controller.suspend(); threading.Timer(15, controller.resume).start()"
    ran = controller_met(do)
    assert ran.status == "ok", ran.message
    assert kernel.run("%%px\nprint(1)").text == "[all ranks] 1\n"


@pytest.mark.nightly
def test_a_controller_that_ends_while_ranks_start_is_reported(kernel, controller_met):
    ran = controller_met("controller.kill()")
    assert ran.error == "ControllerFailed", ran.message
    assert "ipyparallel's controller failed" in ran.message
    assert "Try cluster.start() again" in ran.message and "printed: " in ran.message
    assert ran.seconds < 60  # less than a busy controller gets
    kernel.run("Processes._connect = connect")
    started(kernel, 2)


@pytest.mark.parametrize("of", cases(["registration", "control", "mux", "task"], {"control"}))
def test_ranks_start_if_another_program_took_a_port_of_the_controller(kernel: Notebook, of):
    """The controller ends, or continues without a part. A new one chooses other ports."""
    number = ["control", "mux", "task"].index(of) if of != "registration" else None
    ran = kernel.run(
        "import socket\n"
        "from parlab import cluster\n"
        "from parlab.cluster import processes\n"
        "cluster.stop()\n"
        "taken = [socket.create_server(('127.0.0.1', 0)) for _ in range(8)]\n"
        "ports = [one.getsockname()[1] for one in taken]\n"
        f"pool, number = {'engine' if number is None else 'client'!r}, {number or 0}\n"
        "option = f'--IPController.{pool}_ports=' + ','.join(map(str, ports))\n"
        "for index, one in enumerate(taken):\n"
        "    if index != number:\n"
        "        one.close()\n"
        "processes.CONTROLLER_ARGS.append(option)\n"
        "kill = processes.Processes.kill\n"
        "ends = []\n"
        "def free(self):\n"
        "    ends.append(kill(self))\n"
        "    taken[number].close()\n"
        "processes.Processes.kill = free\n"
        "cluster.start(2)\n"
        "print(len(ends), 'ended')"
    )
    kernel.run("processes.Processes.kill = kill\nprocesses.CONTROLLER_ARGS.remove(option)")
    assert ran.status == "ok", ran.message
    assert "1 ended" in ran.text, "the first start did not fail"
    assert kernel.run("%%px\nprint(1)").text == "[all ranks] 1\n"
