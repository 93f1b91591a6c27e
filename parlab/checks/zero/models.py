"""An awkward model for the checks of this lab: layers in a model, of sizes that do not divide."""

from itertools import pairwise
from random import Random

import torch
from torch import Tensor, nn


class Blocks(nn.Module):
    """A classifier of tokens: `model(tokens)` with tokens (batch,) int64 → scores (batch, vocab).

    - `embed.weight` and `unembed.weight` are one tied parameter, of the model itself;
    - `frozen.weight` does not require a gradient;
    - each block has another number of parameters; that of `unused` gets no gradient, nor does
      `spare`, the first of the model's own.
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
        """The model, then what is inside it, in the order of use; `unused` is a layer as well."""
        return [self, self.unused, *self.blocks]

    @property
    def used_layers(self) -> list[nn.Module]:
        """As `layers`, without the one that no pass goes through: the model's own, then."""
        return [self, *self.blocks]


class Chain(nn.Module):
    """As `Blocks`, of layers one after the other: none lies around the others."""

    def __init__(self, vocab_size: int, hidden_size: int, inner: list[int]) -> None:
        super().__init__()
        sizes = [hidden_size, *inner]
        self.embed = nn.Embedding(vocab_size, hidden_size)
        blocks = [nn.Sequential(nn.Linear(n, k), nn.Tanh()) for n, k in pairwise(sizes)]
        self.blocks = nn.Sequential(*blocks, nn.Linear(sizes[-1], vocab_size))

    def forward(self, tokens_B: Tensor) -> Tensor:
        return self.blocks(self.embed(tokens_B))

    @property
    def used_layers(self) -> list[nn.Module]:
        """In the order of use."""
        return [self.embed, *self.blocks]


def chain(draw: Random, rank: int = 0) -> Chain:
    """A float64 `Chain` of layers of different sizes; values differ by `rank`, shapes do not."""
    while True:
        vocab_size, hidden_size = draw.randrange(5, 9), draw.randrange(7, 12, 2)
        inner = draw.sample(range(12, 30), 3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(32) + rank)
            model = Chain(vocab_size, hidden_size, inner).double()
        sizes = sorted(sum(p.numel() for p in layer.parameters()) for layer in model.used_layers)
        if all(b - a > 15 for a, b in pairwise(sizes)):  # padded too, they differ
            return model


def awkward_blocks(draw: Random, rank: int = 0) -> Blocks:
    """A float64 `Blocks`; values differ by `rank`, shapes do not. Frozen weights are alike."""
    vocab_size, hidden_size = draw.randrange(5, 9), draw.randrange(7, 12, 2)
    inner = draw.sample(range(9, 20), 3)
    seed = draw.getrandbits(32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + rank)
        model = Blocks(vocab_size, hidden_size, inner).double()
        torch.manual_seed(seed)
        nn.init.normal_(model.frozen.weight)  # no rank sends what nobody trains
    return model


def parameter_vector(parameters: list[nn.Parameter]) -> Tensor:
    """The values of parameters side by side."""
    return torch.cat([p.detach().flatten() for p in parameters])
