"""PyTorch's data and tensor parallelism on one mesh: `fully_shard` over `parallelize_module`."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from parlab.libraries.tensor_parallel import PLAN, by_rank
from parlab.models import GPT
from parlab.training import MakeOptimizer, token_loss


class ShardedParallelGPT:
    """A GPT whose blocks are split over `tp` neighboring ranks, and sharded over the replicas.

    The default group has dp × tp ranks. The weights are gathered once in a step, before the first
    micro-batch, and sharded again after the last one.
    """

    def __init__(self, model: GPT, tp: int, make_optimizer: MakeOptimizer, max_norm: float) -> None:
        device = next(model.parameters()).device
        sizes = (dist.get_world_size() // tp, tp)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("dp", "tp"))
        mesh._flatten("dp_tp")  # so that a norm needs one all-reduce, not one in each dimension
        self.model, self.max_norm, self.dp = model, max_norm, mesh["dp"]
        for block in model.blocks:
            attention = block.attention
            for parameter in attention.qkv.parameters():
                parameter.data = by_rank(parameter.data, attention.sections, tp)
            parallelize_module(block, mesh["tp"], PLAN)
            attention.heads //= tp
            attention.key_value_heads //= tp
        for layer in (*model.blocks, model):
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
        # A fused operation accepts only parameters of the same mesh.
        meshes: dict[object, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            meshes.setdefault(parameter.device_mesh, []).append(parameter)
        self.parameters: Sequence[list[nn.Parameter]] = list(meshes.values())
        self.optimizers = [make_optimizer(part) for part in self.parameters]

    def train(self, tokens_MbS: Tensor, targets_MbS: Tensor) -> float:
        """Take a step on this replica's micro-batches. Return the mean loss of all replicas."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        mean, last = torch.zeros((), device=tokens_MbS.device), len(tokens_MbS) - 1
        for number, (tokens, targets) in enumerate(zip(tokens_MbS, targets_MbS, strict=True)):
            self.model.set_requires_gradient_sync(number == last)
            self.model.set_reshard_after_backward(number == last)
            loss = token_loss(self.model(tokens), targets) / len(tokens_MbS)
            loss.backward()
            mean += loss.detach()
        self._clip()
        for optimizer in self.optimizers:
            optimizer.step()
        dist.all_reduce(mean, group=self.dp.get_group())
        return mean.item() / self.dp.size()

    def _clip(self) -> None:
        norms = []
        for part in self.parameters:
            norm = nn.utils.get_total_norm([p.grad for p in part])
            norms.append(norm.full_tensor())
        norm = torch.stack(norms).norm()
        for part in self.parameters:
            nn.utils.clip_grads_with_norm_(part, self.max_norm, norm)
