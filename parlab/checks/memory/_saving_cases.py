"""Losses whose computation saves all kinds of tensors."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab import models
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding


class Case(NamedTuple):
    """A loss, the module whose tensors stay, and the tensors that it is computed from."""

    module: nn.Module
    x: Tensor
    loss: Callable[[], Tensor]
    constants: tuple[Tensor, ...] = ()

    @property
    def leaves(self) -> list[Tensor]:
        return [self.x, *self.module.parameters()]


def seeded(draw: Random) -> torch.Generator:
    return torch.Generator().manual_seed(draw.getrandbits(32))


class Scaled(nn.Module):
    """A transformer block with two buffers; of one, which is no part of the state, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.block = models.Block(models.GPTConfig(sequence_length=32, hidden_size=32))
        self.register_buffer("scale", torch.rand(32, 32) + 0.5)
        self.register_buffer("mask", torch.rand(32, 64) + 0.5, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x * self.scale) * self.mask[:, 32:]


def block(generator: torch.Generator) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        module = Scaled()
    x = torch.randn(4, 32, 32, generator=generator, requires_grad=True)
    return Case(module, x, lambda: module(module(x)).square().mean())


def views(generator: torch.Generator) -> Case:
    """Strides, offsets, and four dtypes."""
    x = torch.randn(64, 48, generator=generator, requires_grad=True)
    where = torch.randint(64, (64, 48), generator=generator)
    mask = torch.rand(64, 64, generator=generator) < 0.5

    def loss() -> Tensor:
        left, right = (x * 2.0).t().exp().split([16, 32])
        product = left[:, ::2] @ right.t()[1::2] + x.bfloat16().tanh().float().t()[:16, :32]
        gathered = torch.gather(x.sin(), 0, where) * left.mean()
        return (
            product.sum() + gathered.square().sum() + torch.where(mask, x @ x.t(), 0.0).exp().mean()
        )

    return Case(nn.Linear(48, 48), x, loss, (where, mask))


def chain(generator: torch.Generator, layers: int) -> Case:
    """Layers, and a small softmax, which saves its own output, at the end."""
    module = nn.Sequential(*(nn.Linear(32, 32) for _ in range(layers)))
    x = torch.randn(64, 32, generator=generator, requires_grad=True)

    def loss() -> Tensor:
        y = x
        for layer in module:
            y = F.gelu(layer(y)) * y
        return y.sum() + y.tanh()[:8, :8].softmax(-1).square().sum()

    return Case(module, x, loss)


def same_gradients(got: list[Tensor | None], right: list[Tensor | None]) -> Finding | None:
    found = (
        equal(one, other, f"gradient {i}")
        for i, (one, other) in enumerate(zip(got, right, strict=True))
        if other is not None
    )
    return next(filter(None, found), None)
