"""All cells of a lab run in the memory that Binder gives to a notebook."""

import threading

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from parlab.runtime.paths import ROOT
from tests.notebook.test_labs import CELL_SECONDS, NOTEBOOK_SECONDS, environment

# Binder gives 2,048 MiB to JupyterLab, the kernel, and the ranks. JupyterLab takes up to 150.
LIMIT = 1850  # MiB
EVERY_SECONDS = 0.2


class PeakMemory(threading.Thread):
    """Measures the memory of a process and its descendants until `done` is set.

    Shared memory, such as a library's code, is divided among the processes that share it.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process(pid)
        self.done = threading.Event()
        self.mib = 0.0

    def run(self) -> None:
        while not self.done.wait(EVERY_SECONDS):
            self.mib = max(self.mib, self._now())

    def _now(self) -> float:
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:  # it has ended
                continue
        return total / 2**20


@pytest.mark.nightly
@pytest.mark.timeout(NOTEBOOK_SECONDS + 60)
@pytest.mark.parametrize("lab", ["02_data_parallel"])
def test_a_lab_with_large_models_runs_in_the_memory_of_binder(lab: str) -> None:
    notebook = nbformat.read(ROOT / "solutions" / f"{lab}.ipynb", as_version=4)
    peak: list[PeakMemory] = []

    def starts(cell: nbformat.NotebookNode, cell_index: int) -> None:
        if not peak:
            peak.append(PeakMemory(client.km.provisioner.pid))
            peak[0].start()

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "solutions")}},
        on_cell_start=starts,
    )
    try:
        client.execute(env=environment(PARLAB_ROUNDS="1"))
    finally:
        for thread in peak:
            thread.done.set()
            thread.join()
    assert 0 < peak[0].mib < LIMIT
