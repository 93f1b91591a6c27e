"""Models for this lab's checks: layers of different sizes, which the ranks do not divide."""

from itertools import pairwise
from random import Random

import torch
from torch import Tensor, nn


class Blocks(nn.Module):
    """A classifier of tokens: `model(tokens)` with tokens (batch,) int64 → scores (batch, vocab).

    - `embed.weight` and `unembed.weight` are one tied parameter, which belongs to the model itself.
    - `frozen.weight` does not require a gradient.
    - `unused` gets no gradient, nor does `spare`, the first of the model's own parameters.
    """

    def __init__(self, vocab_size: int, hidden_size: int, inner: list[int]) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.randn(3))
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.frozen = nn.Linear(hidden_size, hidden_size, bias=False).requires_grad_(False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden_size, k), nn.Tanh(), nn.Linear(k, hidden_size))
            for k in inner
        )
        self.unused = nn.Linear(3, 1)
        self.unembed = nn.Linear(hidden_size, vocab_size)
        self.unembed.weight = self.embed.weight  # tied

    def forward(self, tokens_B: Tensor) -> Tensor:
        x_BH = self.frozen(self.embed(tokens_B))
        for block in self.blocks:
            x_BH = x_BH + block(x_BH)
        return self.unembed(x_BH)

    @property
    def layers(self) -> list[nn.Module]:
        """The model and the layers inside it, in the order of use, with the unused one."""
        return [self, self.unused, *self.blocks]

    @property
    def used_layers(self) -> list[nn.Module]:
        """`layers` without the unused layer, whose parameters then count as the model's own."""
        return [self, *self.blocks]


class Chain(nn.Sequential):
    """A classifier like `Blocks`, but in which no layer contains another."""

    @property
    def embed(self) -> nn.Module:
        return self[0]

    @property
    def used_layers(self) -> list[nn.Module]:
        return list(self)


def chain(draw: Random, rank: int = 0) -> Chain:
    """Return a float64 `Chain`: `rank` changes the values, not the shapes."""
    while True:
        vocab_size, hidden_size = draw.randrange(5, 9), draw.randrange(7, 12, 2)
        sizes = [hidden_size, *draw.sample(range(12, 30), 3)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(32) + rank)
            blocks = [nn.Sequential(nn.Linear(n, k), nn.Tanh()) for n, k in pairwise(sizes)]
            ends = nn.Embedding(vocab_size, hidden_size), nn.Linear(sizes[-1], vocab_size)
        model = Chain(ends[0], *blocks, ends[1]).double()
        numbers = sorted(sum(p.numel() for p in layer.parameters()) for layer in model)
        if all(b - a > 15 for a, b in pairwise(numbers)):  # they still differ when padded
            return model


def awkward_blocks(draw: Random, rank: int = 0) -> Blocks:
    """Return float64 `Blocks`: `rank` changes the values, except frozen ones, not the shapes."""
    vocab_size, hidden_size = draw.randrange(5, 9), draw.randrange(7, 12, 2)
    inner = draw.sample(range(9, 20), 3)
    seed = draw.getrandbits(32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + rank)
        model = Blocks(vocab_size, hidden_size, inner).double()
        torch.manual_seed(seed)
        nn.init.normal_(model.frozen.weight)
    return model


def parameter_vector(parameters: list[nn.Parameter]) -> Tensor:
    """Return the values of parameters in one flat tensor."""
    return torch.cat([p.detach().flatten() for p in parameters])
