"""PyTorch's own tensor parallelism: `parallelize_module`, which is built on DTensor."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from parlab.models import GPT

PLAN = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(),
}


def parallelized_gpt(model: GPT) -> GPT:
    """Split the blocks of a GPT over all ranks with `PLAN`, in place, and return the model.

    `parallelize_module` cuts the rows of `qkv` into as many parts as there are ranks. So the rows
    are first put in order by rank, with the queries, keys, and values of rank 0's heads in front.
    """
    device, world_size = next(model.parameters()).device, dist.get_world_size()
    mesh = init_device_mesh(device.type, (world_size,))
    for block in model.blocks:
        attention = block.attention
        for parameter in attention.qkv.parameters():
            parameter.data = by_rank(parameter.data, attention.sections, world_size)
        parallelize_module(block, mesh, PLAN)
        attention.heads //= world_size
        attention.key_value_heads //= world_size
    return model


def by_rank(rows: Tensor, sections: list[int], world_size: int) -> Tensor:
    """Return rows of queries, keys, and values in rank order, each rank's heads together."""
    parts = [section.chunk(world_size) for section in rows.split(sections)]
    return torch.cat([part[rank] for rank in range(world_size) for part in parts])
