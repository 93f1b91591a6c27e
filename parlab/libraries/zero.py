"""PyTorch's own ZeRO: `ZeroRedundancyOptimizer` for stage 1, `fully_shard` (FSDP2) for 2 and 3."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from parlab import memory
from parlab.training import MakeOptimizer


class Library:
    """A model and its optimizer under a library that averages gradients over the default group."""

    def __init__(self, parallel: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.parallel, self.model, self.optimizer = parallel, model, optimizer

    def train(self, inputs: Tensor, targets: Tensor) -> float:
        """Take a step on this rank's samples of a batch. Return the mean loss of the batch."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        own = slice(rank, None, world_size)
        # The library averages over ranks, which need not have equally many samples.
        share = world_size * len(inputs[own]) / len(inputs)
        self.optimizer.zero_grad()
        loss = share * F.cross_entropy(self.parallel(inputs[own]), targets[own])
        loss.backward()
        self.optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        return mean.item()

    def bytes_held(self) -> int:
        """Return the bytes of parameters, gradients, and optimizer states on this rank."""
        return memory.model_states(self.model, self.optimizer).total


def zero_redundancy(model: nn.Module, optimizer: type, **settings: object) -> Library:
    """Return stage 1: `DistributedDataParallel` with a `ZeroRedundancyOptimizer`."""
    parallel = DistributedDataParallel(model)
    return Library(
        parallel, model, ZeroRedundancyOptimizer(parallel.parameters(), optimizer, **settings)
    )


def fully_sharded(
    model: nn.Module, layers: Iterable[nn.Module], make_optimizer: MakeOptimizer, *, reshard: bool
) -> Library:
    """Return stage 3. With `reshard=False`, parameters are kept whole until the backward pass.

    Args:
        model: the whole model, which is changed in place.
        layers: the layers to gather one at a time.
        make_optimizer: makes the optimizer of the sharded parameters.
        reshard: True to free a layer's parameters after its forward pass.
    """
    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in [*layers, model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return Library(model, model, make_optimizer(model.parameters()))
