"""Imports in rank cells: they may take long, and an interrupted import must be noticed."""

from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import in_time

SECONDS = 4  # for what a cell does after its imports, on a busy machine

# A module that creates a file when its import begins, and ends when another file exists.
WAITING = """
import os, pathlib, time
here = pathlib.Path(__file__).parent
(here / f"importing-{os.environ['OMPI_COMM_WORLD_RANK']}").touch()
while not (here / "may_end").exists():
    time.sleep(0.02)
"""


# The learner's own modules whose import does not end, with their texts.
ENDLESS = {
    "waits_for_a_rank": "from parlab.rank import comm\ncomm.recv(source=comm.rank)\n",
    "waits_for_requests": (
        "from mpi4py import MPI\nfrom parlab.rank import comm\n"
        "MPI.Request.Waitall([comm.Irecv(bytearray(8), source=comm.rank)])\n"
    ),
    "sleeps": "import time\ntime.sleep(1000)\n",
    "computes": "import json\nwhile True:\n    json.dumps(list(range(1000)))\n",
}


@pytest.fixture
def folder(notebook: Notebook, tmp_path: Path) -> Path:
    """Make a folder of installed modules, in a folder with the learner's own modules."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    for name in ("waiting", "waiting_on_all", "waiting_on_one"):  # each is imported only once
        (installed / f"{name}.py").write_text(WAITING)
    for name, text in ENDLESS.items():
        (tmp_path / f"{name}.py").write_text(text)
    folders = [str(tmp_path), str(installed)]
    ran = notebook.run(f"%%px\nimport sys; sys.path[:0] = {folders}\nheld = rank")
    assert ran.status == "ok", ran.message
    return installed


@pytest.fixture
def in_c(folder: Path) -> str:
    """Make a module whose body is one call that holds Python's lock until `may_end` is not 0."""
    (folder / "may_end").write_bytes(b"\0")
    (folder / "in_c.py").write_text(
        "import itertools, mmap, pathlib\n"
        "with open(pathlib.Path(__file__).parent / 'may_end', 'rb') as file:\n"
        "    ends = memoryview(mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ))\n"
        "done = any(map(ends.__getitem__, itertools.repeat(0)))\n"
    )
    return "in_c"


def when_its_imports_do_not_count(notebook: Notebook, sent: str) -> None:
    """Wait until the cell reports that its deadline has passed while ranks were importing."""
    while "importing modules. This time does not count" not in notebook.next_text(sent):
        pass


@pytest.mark.nightly
def test_time_in_an_import_that_holds_the_lock_does_not_count(
    notebook: Notebook, folder: Path, in_c: str
) -> None:
    sent = notebook.send(f"%%px --timeout {SECONDS}\nimport {in_c}\nprint({in_c}.done)")
    when_its_imports_do_not_count(notebook, sent)
    with open(folder / "may_end", "r+b") as file:
        file.write(b"1")
    ran = notebook.wait(sent)
    assert ran.text == "[all ranks] True\n", ran.message


def test_time_in_imports_does_not_count(notebook: Notebook, folder: Path) -> None:
    sent = notebook.send(f"%%px --timeout {SECONDS}\nimport waiting_on_all\nprint(held)")
    when_its_imports_do_not_count(notebook, sent)
    (folder / "may_end").touch()
    ran = notebook.wait(sent)
    assert ran.status == "ok", ran.message
    ran = notebook.run("%%px --timeout 1\nimport waiting_on_all\ncomm.recv(source=rank)")
    assert ran.error == "DeadlineExceeded", "the time after imports counts"


@pytest.mark.parametrize("module", cases(ENDLESS, {"waits_for_a_rank", "computes"}))
def test_time_in_a_module_of_the_learner_counts(
    notebook: Notebook, folder: Path, module: str
) -> None:
    ran = notebook.run(f"%%px --timeout 1\nimport {module}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert f"ranks 0-3  line 2: import {module}" in ran.message
    assert "variables are intact" in ran.message
    assert in_time(notebook, ran, 1)
    ran = notebook.run("%%px\nprint(comm.allreduce(held))")
    assert ran.text == "[all ranks] 6\n", ran.message
    imports = notebook.run("print(list(cluster.current().names.imports))").text
    assert module not in imports, "new ranks would never be ready"


def test_after_an_interrupted_import_new_ranks_start_and_do_not_repeat_it(
    notebook: Notebook, folder: Path
) -> None:
    sent = notebook.send("%%px\nimport json\nimport waiting\nimport csv")
    flags = [folder / f"importing-{rank}" for rank in range(4)]
    wait_until(lambda: all(flag.exists() for flag in flags), 60, "the import")
    notebook.interrupt()
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted"
    assert "ranks 0-3  line 3: import waiting" in ran.message
    assert "All ranks stopped during the import of `waiting`" in ran.message
    assert "`held`" in ran.message, "it names the lost variable"
    ran = notebook.run("%%px\nprint(comm.allreduce(1), 'json' in globals(), 'csv' in globals())")
    assert ran.text.endswith("[all ranks] 4 True False\n"), ran.text + ran.message


def test_an_import_that_cannot_be_repeated_is_reported(notebook: Notebook, folder: Path) -> None:
    (folder / "beside_the_lab.py").touch()
    assert notebook.run("%%px\nimport beside_the_lab, colorsys").status == "ok"
    expected = (
        "`import beside_the_lab, colorsys` (ModuleNotFoundError: No module named 'beside_the_lab')"
    )
    assert expected in notebook.run("cluster.restart()").text
    ran = notebook.run("%%px\nprint('colorsys' in globals())")
    assert ran.text == "[all ranks] False\n", "it is reported only once"


def test_ranks_may_wait_for_a_rank_that_imports(notebook: Notebook, folder: Path) -> None:
    sent = notebook.send(
        f"%%px --timeout {SECONDS}\nif rank == 2:\n    import waiting_on_one\n"
        "print(comm.allreduce(1))"
    )
    when_its_imports_do_not_count(notebook, sent)
    (folder / "may_end").touch()
    ran = notebook.wait(sent)
    assert ran.text == "[all ranks] 4\n", ran.message


def test_a_rank_that_has_not_begun_its_cell_gets_its_time(notebook: Notebook) -> None:
    """A busy machine may not run one rank for seconds. Here, a call of its event loop does this."""
    # The cell's second deadline is at 4 s, and its third one at 6 s.
    late = "import asyncio, time\nasyncio.get_event_loop().call_later(0, time.sleep, 4.2)"
    assert notebook.run(f"%%px --targets 2\n{late}").status == "ok"
    ran = notebook.run("%%px --timeout 2\nprint(comm.allreduce(1))")
    assert ran.text == "[all ranks] 4\n", ran.message
    assert notebook.run(f"%%px --targets 2\n{late}").status == "ok"
    ran = notebook.run("%%px\nassert rank > 4")
    assert ran.message == "all ranks: AssertionError\n  line 2: assert rank > 4"


def test_training_does_not_load_the_compiler(notebook: Notebook) -> None:
    ran = notebook.run(
        "%%px --timeout 60\nimport sys, torch\nmodel = torch.nn.Linear(1, 1)\n"
        "torch.optim.SGD(model.parameters()).step()\n"
        "print('torch._dynamo.eval_frame' in sys.modules)"
    )
    assert ran.text == "[all ranks] False\n", ran.message
