"""Loads what torch loads at first use, so that a learner's function need not wait for it.

From a slow disk, or on a busy machine, loading takes longer than a call is allowed to take. The
check would then report that the function does not end.
"""

import functools
import sys

from parlab.ledger import Ledger


def load_torch() -> None:
    """Load these parts once per process. Do nothing if the process does not use torch."""
    if "torch" in sys.modules:
        _load()


@functools.cache
def _load() -> None:
    import torch

    # Under a dispatch mode, the first operation imports torch's compiler, and with it SymPy. So do
    # the first backward pass and an optimizer's first step, which imports a bit more.
    with Ledger():
        torch.ones(1)
    torch.ones(1, requires_grad=True).backward(torch.ones(1))
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0).step()
    # On a GPU, the first matrix product loads cuBLAS. If the lab uses one, it has this `device`.
    device = vars(sys.modules["parlab.rank"]).get("device", "cpu")
    square = torch.ones(2, 2, device=device)
    (square @ square).sum().item()
