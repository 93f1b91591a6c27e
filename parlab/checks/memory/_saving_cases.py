"""Losses whose computation saves all kinds of tensors."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parlab import models


class Case(NamedTuple):
    """A loss, the module whose tensors stay in memory, and the input of the loss."""

    module: nn.Module
    x: Tensor
    loss: Callable[[], Tensor]

    @property
    def leaves(self) -> list[Tensor]:
        return [self.x, *(p for p in self.module.parameters() if p.requires_grad)]


class Scaled(nn.Module):
    """A block with a frozen parameter, and with a buffer that is not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.block = models.Block(models.GPTConfig(sequence_length=32, hidden_size=32))
        self.scale = nn.Parameter(torch.rand(32, 32) + 0.5, requires_grad=False)
        self.register_buffer("mask", torch.rand(32, 64) + 0.5, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x * self.scale) * self.mask[:, 32:]


def block(draw: Random) -> Case:
    """Return two passes of a block, with a small softmax at the end, which saves its output."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        module, x = Scaled(), torch.randn(4, 32, 32, requires_grad=True)

    def loss() -> Tensor:
        y = module(module(x))
        return y.square().mean() + y.tanh()[0, :8, :8].softmax(-1).square().sum()

    return Case(module, x, loss)


def views(draw: Random) -> Case:
    """Return strides, offsets, four dtypes, and a storage that changes in place after a save."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    x = torch.randn(64, 48, generator=generator, requires_grad=True)

    def loss() -> Tensor:
        left, right = (x * 2.0).t().exp().split([16, 32])
        product = left[:, ::2] @ right.t()[1::2] + x.bfloat16().tanh().float().t()[:16, :32]
        gathered = torch.gather(x.sin(), 0, x.detach().argsort(0)) * left.mean()
        products = x @ x.t()
        masked = torch.where(products > 0, products.tanh(), 0.0)  # a mask of 4,096 bytes
        changed = x * 1.0
        old = changed.sin()
        new = changed.mul_(2.0).sin()
        return product.sum() + gathered.square().sum() + masked.mean() + (old + new).sum()

    return Case(nn.Linear(48, 48), x, loss)
