"""The naive split with `torch.distributed.rpc`: one rank calls the stages of all others."""

import logging
import os
import socket
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from parlab.training import Batch

if TYPE_CHECKING:
    from mpi4py import MPI

# For torch's own SGD, the distributed optimizer uses TorchScript, which is deprecated.
logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)
_stages: list[nn.Module] = []


class SGD(torch.optim.SGD):
    """SGD under a name that the distributed optimizer does not compile with TorchScript."""


class Remote:
    """A stage on the rank that made it, which other ranks can call."""

    def __init__(self, number: int) -> None:
        self.stage = _stages[number]

    def forward(self, x: Tensor) -> Tensor:
        return self.stage(x)

    def parameters(self) -> list[rpc.RRef]:
        return [rpc.RRef(p) for p in self.stage.parameters()]


def rpc_losses(
    stages: Sequence[nn.Module], batches: Sequence[Batch], lr: float, comm: "MPI.Intracomm"
) -> tuple[list[float], float]:
    """Train a model whose stage r is on rank r. Rank 0 calls the stages one after another.

    Collective over the ranks of `comm`, which must be on one machine, with CPU tensors.

    Args:
        stages: the whole model, on every rank. Each rank uses only its own stage.
        batches: inputs and labels.
        lr: learning rate of SGD.
        comm: communicator over the ranks.

    Returns:
        The loss of each step, and the median of the seconds of a step, both on rank 0.
    """
    _stages[:] = stages
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = comm.bcast(free.getsockname()[1])
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=60)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using a Backend")  # from rpc, about Gloo
        rpc.init_rpc(
            f"rank{comm.rank}", rank=comm.rank, world_size=comm.size, rpc_backend_options=options
        )
    try:
        return _train(batches, lr, comm.size) if comm.rank == 0 else ([], 0.0)
    finally:
        rpc.shutdown()


def _train(batches: Sequence[Batch], lr: float, ranks: int) -> tuple[list[float], float]:
    stages = [rpc.remote(f"rank{r}", Remote, (r,)) for r in range(ranks)]
    owned = [p for stage in stages for p in stage.rpc_sync().parameters()]
    optimizer = DistributedOptimizer(SGD, owned, lr=lr)
    losses, seconds = [], []
    for x, targets in batches:
        start = time.perf_counter()
        with dist_autograd.context() as context:
            for stage in stages:
                x = stage.rpc_sync().forward(x)
            loss = F.cross_entropy(x, targets)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    return losses, statistics.median(seconds[2:])
