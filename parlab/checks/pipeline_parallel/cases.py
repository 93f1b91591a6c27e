"""A model cut into stages, a batch and a schedule: what a learner's function gets."""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from parlab.checks.trial import Trial
from parlab.pipeline import Schedule, sizes
from parlab.pipeline.stages import Share, share_of

LossOf = Callable[[Tensor, Tensor], Tensor]


def mean_square(scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of all checks, a mean over samples and outputs; another one where the two change."""
    return (scores - 2 * targets).square().mean()


def arguments_swapped(scores: Tensor, targets: Tensor) -> Tensor:
    """What `mean_square(targets, scores)` gives to those who mean their loss."""
    return mean_square(targets, scores)


class Layer(nn.Module):
    """A linear layer and tanh; `Linear` alone would hide an input that is not kept."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Tokens(nn.Module):
    """A first layer whose inputs are whole numbers below `COUNT`."""

    COUNT = 50

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.COUNT, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.embedding(x))


@dataclass
class Case:
    """A model, a batch and a schedule; what is right, and what mistakes give.

    With `tokens` the inputs are whole numbers, each another. The stages in `frozen` require no
    gradients, nor does a parameter of the stage after. `training` is the mode of all stages.
    """

    trial: Trial
    schedule: Schedule
    samples: int
    tokens: bool = False
    frozen: Sequence[int] | None = None
    training: bool = True
    layers: list[nn.Module] = field(init=False)
    inputs: Tensor = field(init=False)
    targets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        draw = self.trial.draw
        self.ranks, self.chunks, self.pieces = sizes(self.schedule)
        self.count = self.ranks * self.chunks
        widths = self.widths = [draw.randrange(2, 6) for _ in range(self.count + 1)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(32))
            self.layers = [Layer(a, b).double() for a, b in itertools.pairwise(widths)]
            self.inputs = torch.randn(self.samples, widths[0], dtype=torch.float64)
            if self.tokens:
                self.layers[0] = Tokens(widths[1]).double()
                self.inputs = torch.randperm(Tokens.COUNT)[: self.samples]
            self.targets = torch.randn(self.samples, widths[-1], dtype=torch.float64)

        if self.frozen is not None:
            for stage in self.frozen:
                self.layers[stage].requires_grad_(False)
            after = self.layers[(max(self.frozen, default=0) + 1) % self.count]
            list(after.parameters())[-1].requires_grad_(False)

    def share(self) -> Share:
        stages = [nn.Sequential(layer) for layer in copy.deepcopy(self.layers)]
        return share_of(stages, self.inputs[:1], self.trial.rank, self.ranks)

    def stage_inputs(self) -> list[list[Tensor]]:
        """The input of each stage, of each micro-batch."""
        found = [list(self.inputs.tensor_split(self.pieces))]
        with torch.no_grad():
            for layer in self.layers[:-1]:
                found.append([layer(x) for x in found[-1]])
        return found

    def gradients(
        self, inputs: Tensor, targets: Tensor, loss_of: LossOf = mean_square
    ) -> list[Tensor]:
        """Of this rank's parameters that are not frozen, of the mean loss of some samples."""
        own = range(max(self.trial.rank, 0), self.count, self.ranks)
        mine = [p for stage in own for p in self.layers[stage].parameters() if p.requires_grad]
        if not mine:
            return []
        return list(torch.autograd.grad(loss_of(self.model()(inputs), targets), mine))

    def model(self) -> nn.Sequential:
        return nn.Sequential(*self.layers)

    def loss(self) -> float:
        with torch.no_grad():
            return mean_square(self.model()(self.inputs), self.targets).item()

    def counts(self) -> list[int]:
        return [len(x) for x in self.inputs.tensor_split(self.pieces)]
