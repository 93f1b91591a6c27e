"""PyTorch on a rank: training does not load its compiler, and compiling does.

The garbage collector does not search its modules.
"""

import subprocess
import sys

import pytest

from tests.support.nightly import cases

# Code that a lab may run before it compiles anything.
TRAIN = """
import sys
from parlab.rank.engine import lazy_imports
lazy_imports.install()
import torch
import gc
assert gc.isenabled() and gc.get_freeze_count() > len(gc.get_objects())
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.Adam(model.parameters())
checkpoint(model, torch.ones(1, 2), use_reentrant=False).sum().backward()
optimizer.step()
model.module(torch.ones(1, 2)).backward(torch.ones(1, 1))
dist.new_group()
from torch._dynamo import config
def is_loaded():
    return "torch._dynamo.eval_frame" in sys.modules
assert not is_loaded() and "sympy" not in sys.modules
"""

# Code that needs the compiler.
LOADS = {
    "compile": "",
    "name": "assert torch._dynamo.OptimizedModule",
    "from": "from torch._dynamo import OptimizedModule",
    "submodule": (
        "import torch._dynamo.eval_frame as found\n"
        "assert found is torch._dynamo.eval_frame\n"
        "assert found.__spec__.origin == found.__file__"
    ),
    "shapes": (
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv, sym_eq\n"
        "assert ShapeEnv.__module__ == sym_eq.__module__"
    ),
    "stand_in": "from torch._dynamo.trace_rules import lookup",
}

COMPILE = """
compiled = []
def backend(graph, inputs):
    compiled.append(graph)
    return graph.forward
assert torch.compile(lambda x: x + x, backend=backend)(torch.ones(1)).item() == 2
assert len(compiled) == 1 and is_loaded()
"""


@pytest.mark.parametrize("load", cases(LOADS, always=["submodule"]))
def test_the_compiler_is_loaded_when_something_needs_it(load: str) -> None:
    program = TRAIN + LOADS[load] + COMPILE
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
