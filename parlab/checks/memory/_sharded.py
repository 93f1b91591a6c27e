"""The model and the reference of `sharded_8bit_step`: one rank that has all samples."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from parlab.checks.base.models import Shard, tokens, trainable
from parlab.checks.memory._blocks import dequantized, quantized
from parlab.formats.dynamic import dynamic_map

LR = 2.0**-6
BETAS, EPS = (0.9, 0.999), 1e-8
SCALE = 2.0**-22  # of the loss: gradients must be as small as eps, or Adam's step hides their size


class Residual(nn.Module):
    """A wide layer around a sum, whose activations are many times as large as its input."""

    def __init__(self, hidden_size: int, inner: int) -> None:
        super().__init__()
        self.wide = nn.Linear(hidden_size, inner)
        self.narrow = nn.Linear(inner, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.tanh(self.wide(x)))


class Small(nn.Module):
    """A classifier of tokens with a tied, a frozen, and an unused parameter.

    If it is `detached`, the input of the first layer needs no gradient.
    """

    def __init__(self, vocab_size: int, hidden_size: int, inner: int) -> None:
        super().__init__()
        self.detached = False
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.frozen = nn.Linear(hidden_size, hidden_size).requires_grad_(False)
        self.layers = nn.ModuleList(Residual(hidden_size, inner) for _ in range(3))
        self.unused = nn.Parameter(torch.randn(5))
        self.unembed = nn.Linear(hidden_size, vocab_size, bias=False)
        self.unembed.weight = self.embed.weight

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.frozen(self.embed(inputs))
        x = x.detach() if self.detached else x
        for layer in self.layers:
            x = layer(x)
        return self.unembed(x)


@contextmanager
def layers_restored() -> Iterator[None]:
    """Undo changes that the block makes to the class of the layers."""
    forward = Residual.forward
    try:
        yield
    finally:
        Residual.forward = forward


def drawn_model(draw: Random, rank: int) -> Small:
    """Draw a model. `rank` changes values that are not frozen, but no shapes."""
    sizes = draw.randrange(5, 9), draw.randrange(9, 14), draw.randrange(80, 100)
    seed = draw.getrandbits(32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + rank)
        model = Small(*sizes)
        torch.manual_seed(seed)
        nn.init.normal_(model.frozen.weight)
        nn.init.zeros_(model.frozen.bias)
        return model


def drawn_samples(draw: Random, model: Small, ranks: int) -> list[Shard]:
    """Draw a different number of samples for each rank."""
    return [tokens(draw, model, n) for n in draw.sample(range(3, 2 * ranks + 5), ranks)]


def loss_of(model: nn.Module, samples: Shard, total: int) -> Tensor:
    return F.cross_entropy(model(samples[0]), samples[1], reduction="sum") * (SCALE / total)


def checkpointed(model: Small) -> Small:
    """Return a copy whose layers are checkpointed by torch."""
    twin = copy.deepcopy(model)
    for layer in twin.layers:
        layer.forward = partial(
            torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False
        )
    return twin


def vector(model: nn.Module) -> Tensor:
    """Return a copy of the trainable parameters in one flat tensor."""
    return torch.cat([p.detach().flatten() for p in trainable(model).values()])


def set_vector(model: nn.Module, values: Tensor) -> None:
    parameters = list(trainable(model).values())
    for p, part in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
        p.detach().copy_(part.view_as(p))


class Serial:
    """8-bit Adam on one rank, with blocks that begin at the start of all parameters."""

    def __init__(self, model: Small, block_size: int) -> None:
        self.model, self.block_size = model, block_size
        self.steps, self.m, self.v = 0, *torch.zeros(2, len(vector(model)), dtype=torch.float64)

    def gradient(self, samples: Shard, total: int) -> Tensor:
        loss, parameters = loss_of(self.model, samples, total), [*trainable(self.model).values()]
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in found]).double()

    def moved(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parameters after a step along `gradient`, and both moments."""
        m = BETAS[0] * self.m + (1 - BETAS[0]) * gradient
        v = BETAS[1] * self.v + (1 - BETAS[1]) * gradient**2
        t = self.steps + 1
        update = (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPS)
        return (vector(self.model).double() - LR * update).float(), m, v

    def step(self, gradient: Tensor) -> None:
        values, m, v = self.moved(gradient)
        set_vector(self.model, values)
        self.steps += 1
        self.m, self.v = self._rounded(m, True), self._rounded(v, False)

    def _rounded(self, values: Tensor, signed: bool) -> Tensor:
        levels = dynamic_map(signed)
        codes, absmax = quantized(values, levels, self.block_size)
        return dequantized(codes, absmax, levels, self.block_size)
