"""One stage of a GPT whose blocks are split over tensor-parallel ranks, and ZeRO-1 for it.

    stage = Stage(config, seed=0, tp_group=groups["tp"], stage_index=1, stages=2).to(device)
    adam = ShardedAdam(stage, groups["dp"], {"norm": 2, "column": 1, "embedding": 4}, lr=3e-3)

Each rank creates the whole serial GPT from the seed and keeps its part, so every layout starts from
the same model.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.models import GPT, Block, GPTConfig
from parlab.sharding import flat_buffers

# Tensor-parallel ranks split these weights of a block along this dimension.
SPLIT = {
    "attention.qkv.weight": 0,
    "attention.qkv.bias": 0,
    "attention.out.weight": 1,
    "mlp.0.weight": 0,
    "mlp.0.bias": 0,
    "mlp.2.weight": 1,
}


class Stage(nn.Module):
    """One pipeline stage of a `models.GPT` with tied embeddings and no dropout.

    `stage(x)` takes tokens (b, S) int64 on the first stage, and activations (b, S, H) on others. It
    returns activations (b, S, H), or scores (b, S, V) on the last stage. Ranks of `tp_group` have
    the same stage, get the same input, and return the same output. Each one has a part of the heads
    and of the MLP, and a copy of the rest.

    Attributes:
        first, last: True if this is the first or the last stage.
        embedding: the token embedding, which is also the output layer. The first and the last
            stage have a copy each, and other stages have None.
    """

    def __init__(
        self,
        config: GPTConfig,
        seed: int,
        tp_group: dist.ProcessGroup,
        stage_index: int,
        stages: int,
    ) -> None:
        """
        Raises:
            ValueError: the number of stages does not divide the number of layers, or the number of
                tensor-parallel ranks does not divide the number of heads.
        """
        super().__init__()
        _require_divisible("layers", config.layers, "stages", stages)
        _require_divisible("heads", config.heads, "tp", tp_group.size())
        self.config, self.tp_group = config, tp_group
        self.first, self.last = stage_index == 0, stage_index == stages - 1
        own = config.layers // stages
        self.start = own * stage_index  # the number of the first block
        whole = serial_gpt(config, seed)
        self.embedding = nn.Parameter(whole.tokens.weight.detach()) if self.ends else None
        self.positions = whole.positions if self.first else None
        self.blocks = whole.blocks[self.start : self.start + own]
        self.norm = whole.norm if self.last else None
        parts = self.part_of(dict(whole.named_parameters()))
        for block in self.blocks:
            _sum_over(block, tp_group)
        for name, parameter in self.named_parameters():
            parameter.data = parts[name].detach().clone()

    @property
    def ends(self) -> bool:
        """True if this is the first or the last stage, or both."""
        return self.first or self.last

    def activation_shape(self, samples: int) -> tuple[int, int, int]:
        """Return the shape of the activations that a stage sends to the next one for `samples`."""
        return samples, self.config.sequence_length, self.config.hidden_size

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = F.embedding(x, self.embedding) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding) if self.last else x

    def kinds(self) -> list[str]:
        """Return the kind of each parameter, in the order of `parameters()`.

        "column" is split over tensor-parallel ranks. "embedding" and "norm" are copies on all of
        them, and "embedding" is also on the first and last stage.
        """
        return [
            "embedding" if name == "embedding" else "column" if _dimension(name) else "norm"
            for name, _ in self.named_parameters()
        ]

    def part_of(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's part of the serial model's tensors, such as gradients.

        `whole` has the names of the serial model's parameters. The result has this stage's names.
        """
        return {name: self._part(name, whole) for name, _ in self.named_parameters()}

    def _part(self, name: str, whole: Mapping[str, Tensor]) -> Tensor:
        if name == "embedding":
            return whole["tokens.weight"]
        if not name.startswith("blocks."):
            return whole[name]
        _, number, inner = name.split(".", 2)
        tensor = whole[f"blocks.{self.start + int(number)}.{inner}"]
        if inner not in SPLIT:
            return tensor
        head, config = self.config.hidden_size // self.config.heads, self.config
        keys = head * (config.key_value_heads or config.heads)
        qkv = [config.hidden_size, keys, keys]
        sections = tensor.split(qkv) if inner.startswith("attention.qkv") else [tensor]
        rank, size = self.tp_group.rank(), self.tp_group.size()
        return torch.cat([section.chunk(size, SPLIT[inner])[rank] for section in sections])


class ShardedAdam:
    """ZeRO-1 for a stage: whole weights and gradients, and this rank's shard of Adam's states.

    Attributes:
        flat: all weights of the stage, one after the other in one tensor, padded with zeros. The
            stage's parameters are views of it.
        gradient: their gradients, in the same order. Each `.grad` is a view of it.
        shard: this rank's part of `flat`, the same memory. `shard.grad` is the same part of
            `gradient`. The parts of the ranks of `dp_group` are equally long, and in rank order.
        optimizer: Adam on `shard` alone.
        parts: `shard.grad` as a list of views. Each one belongs to one parameter of the stage.
        copies: for each of these parts, how many ranks hold the same part of the gradient.
    """

    def __init__(
        self, stage: Stage, dp_group: dist.ProcessGroup, copies: Mapping[str, int], lr: float
    ) -> None:
        """`copies` is the number of ranks that have the same shard, by its parameter's kind."""
        rank, size, parameters = dp_group.rank(), dp_group.size(), list(stage.parameters())
        self.flat, self.gradient = flat_buffers(parameters, size)
        self.shard = nn.Parameter(self.flat.chunk(size)[rank])
        self.shard.grad = self.gradient.chunk(size)[rank]
        self.optimizer = torch.optim.Adam([self.shard], lr=lr)
        self.parts, self.copies = [], []
        start, length = 0, self.shard.numel()
        for parameter, kind in zip(parameters, stage.kinds(), strict=True):
            first, after = start - rank * length, start + parameter.numel() - rank * length
            if after > 0 and first < length:
                self.parts.append(self.shard.grad[max(first, 0) : min(after, length)])
                self.copies.append(copies[kind])
            start += parameter.numel()


def serial_gpt(config: GPTConfig, seed: int) -> GPT:
    """Return the GPT that all stages are parts of. The random generators do not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(config)


def _sum_over(block: Block, group: dist.ProcessGroup) -> None:
    """Make a block with only parts of the weights compute the same results as the whole block."""
    attention, mlp, size = block.attention, block.mlp, group.size()
    attention.heads //= size
    attention.key_value_heads //= size
    for norm in (block.norm_1, block.norm_2):
        norm.register_forward_hook(_sums_gradient(group))
    attention.out = SummedLinear(attention.out, group)
    mlp[2] = SummedLinear(mlp[2], group)


class SummedLinear(nn.Module):
    """A linear layer whose inputs are split among the ranks of a group, which sum its outputs."""

    def __init__(self, linear: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight, self.bias, self.group = linear.weight, linear.bias, group

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        if self.group.size() > 1:
            # Bypass autograd, because each rank's part has the same gradient as the sum.
            dist.all_reduce(y.detach(), group=self.group)
        return y + self.bias


def _sums_gradient(group: dist.ProcessGroup):
    """Return a module hook that sums the gradient of the module's output over the ranks."""

    def summed(gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=group)
        return gradient

    def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        if output.requires_grad and group.size() > 1:
            output.register_hook(summed)

    return hook


def _dimension(name: str) -> bool:
    return name.startswith("blocks.") and name.split(".", 2)[2] in SPLIT


def _require_divisible(what: str, number: int, by: str, divisor: int) -> None:
    if number % divisor:
        raise ValueError(f"{by} = {divisor} does not divide {number} {what}")
