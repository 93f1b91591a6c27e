"""Ranks that are stuck in a call of `torch.distributed` are freed and keep their variables."""

import re

import pytest

from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import DEADLINE, in_time, started, works_and_keeps

# These tests have their own file, because new ranks repeat the imports of the notebook, and
# the tests of other files often replace the ranks.
TORCH = {
    "group": "if rank != 2:\n    dist.all_reduce(torch.ones(3), group=group)",
    "the default group (Gloo)": "if rank != 2:\n    dist.all_reduce(torch.ones(3))",
    "a receive on Gloo": "if rank == 1:\n    dist.recv(torch.ones(3), src=0)",
    "a backward pass of DDP on Gloo": "if rank != 0:\n    ddp(torch.ones(2, 4)).sum().backward()",
}
WITH_DDP = """
from torch.nn.parallel import DistributedDataParallel
ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
"""


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("name", cases(TORCH, {"group", "the default group (Gloo)"}))
def test_torch_distributed_is_freed_too(notebook: Notebook, name: str):
    ran = notebook.run(
        "%%px --timeout 120\nimport torch, torch.distributed as dist\n"
        "from parlab.rank import group\ntensor = torch.full((2,), 7.0)"
        + (WITH_DDP if "DDP" in name else "")  # which takes each rank a second to import
    )
    assert ran.status == "ok", ran.message
    ran = notebook.run(f"%%px --timeout {DEADLINE}\n{TORCH[name]}")
    assert (ran.status, ran.error) == ("error", "DeadlineExceeded"), ran.message
    assert "line 3" in ran.message
    assert in_time(notebook, ran, DEADLINE)
    works_and_keeps(notebook, held=True)
    ran = notebook.run(
        "%%px\nx, y = torch.ones(1), torch.ones(1)\n"
        "dist.all_reduce(x)\ndist.all_reduce(y, group=group)\nprint(x + y, tensor.sum())"
    )
    assert ran.text == "[all ranks] tensor([8.]) tensor(14.)\n", ran.message


@pytest.mark.usefixtures("held")
def test_variables_with_groups_that_ended_are_named(notebook: Notebook):
    made = notebook.run(
        "%%px --timeout 120\nimport torch, torch.distributed as dist\n"
        "from parlab.rank import group\ndeep = [{'x': ({'y': comm.Split(0)}, 1)}]\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))\n"
        "layouts = {'a': ({'dp': dist.new_group()}, 1)}\ndeep[0]"
    )
    assert made.status == "ok", made.message
    stuck = "if rank != 1:\n    deep[0]['x'][0]['y'].Barrier()"
    ran = notebook.run(f"%%px --timeout {DEADLINE}\n{stuck}")
    assert "Your own communicator `deep` ended: rerun the cell that makes it." in ran.message
    stuck = "if rank != 1:\n    dist.all_reduce(torch.ones(3))"
    ran = notebook.run(f"%%px --timeout {DEADLINE}\n{stuck}")
    named = re.search(r"The process groups in (.*) ended: run the cells that define", ran.message)
    assert named and "`layouts`" in named[1] and "`mesh`" in named[1], ran.message
    assert "`group`" not in named[1] and "`_" not in named[1]
    works_and_keeps(notebook, held=True)


@pytest.mark.usefixtures("held")
@pytest.mark.nightly
def test_threads_of_gloo_end_with_the_calls_that_were_freed(notebook: Notebook):
    count = (
        "%%px\nfrom pathlib import Path\n"
        "names = [one.read_text() for one in Path('/proc/self/task').glob('*/comm')]\n"
        "print(names.count('gloo_tcp_loop\\n'))"
    )
    counts = []
    for _ in range(4):
        ran = notebook.run(
            f"%%px --timeout {DEADLINE}\nimport torch, torch.distributed as dist\n"
            "from parlab.rank import group\nif rank != 1:\n    dist.all_reduce(torch.ones(3))"
        )
        assert ran.error == "DeadlineExceeded"
        counts.append(notebook.run(count).text)
    assert "rank" in counts[0] and counts[1:] == counts[:-1], counts


@pytest.mark.nightly
def test_group_imported_on_some_ranks_only_is_stuck_and_freed(kernel: Notebook):
    started(kernel, 3)
    # The import of torch takes longer than the deadline of the next cell.
    before = "%%px --timeout 120\nimport torch, torch.distributed as dist\n"
    ran = kernel.run(f"{before}from parlab.rank import comm, rank\nheld = rank")
    assert ran.status == "ok", ran.message
    ran = kernel.run("%%px --timeout 3\nif rank != 1:\n    from parlab.rank import group")
    assert ran.error == "DeadlineExceeded"
    assert "ranks 0, 2  line 3: from parlab.rank import group" in ran.message
    assert "variables are intact" in ran.message
    ran = kernel.run(
        "%%px\nfrom parlab.rank import group\n"
        "x = torch.ones(1)\ndist.all_reduce(x, group=group)\ndist.all_reduce(x)\nprint(x, held)"
    )
    assert ran.text == "".join(f"[rank {rank}] tensor([9.]) {rank}\n" for rank in range(3))
