"""A model cut into stages, a batch, a schedule, and the right and wrong losses and gradients."""

import copy
import itertools
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from parlab.checks.base.trial import Trial
from parlab.pipeline import Action, Schedule, sizes, texts
from parlab.pipeline.stages import Share, share_of

VOCABULARY = 50

Values = tuple[Tensor, Tensor]  # the loss, and all gradients of this rank in one row


def mean_square(scores: Tensor, targets: Tensor) -> Tensor:
    """Return a mean over samples and outputs. It changes if the arguments are swapped."""
    return (scores - 2 * targets).square().mean()


def in_one_row(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0).double(), *(g.detach().flatten() for g in gradients)])


class Case:
    """The input of a learner's function in one trial, and the right results.

    With `tokens`, the inputs are distinct integers. The stages in `frozen` do not require
    gradients, nor does one parameter of the next stage. `training` is the mode of all stages.
    """

    def __init__(
        self,
        trial: Trial,
        schedule: Schedule,
        samples: int,
        *,
        tokens: bool = False,
        frozen: Collection[int] | None = None,
        training: bool = True,
    ) -> None:
        self.trial, self.schedule, self.samples = trial, schedule, samples
        self.tokens, self.frozen, self.training = tokens, frozen, training
        self.ranks, self.chunks, self.pieces = sizes(schedule)
        self.stages = self.ranks * self.chunks
        self.own = range(max(trial.rank, 0), self.stages, self.ranks)
        self.widths = [trial.draw.randrange(3, 6) for _ in range(self.stages + 1)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(trial.draw.getrandbits(32))
            # Each stage has an activation that is neither its input nor its output. SELU keeps
            # the size of gradients through many stages.
            self.layers = [
                nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.SELU())
                for a, b in itertools.pairwise(self.widths)
            ]
            self.inputs = torch.randn(samples, self.widths[0]).double()
            if tokens:
                self.layers[0][0] = nn.Embedding(VOCABULARY, self.widths[1])
                self.inputs = torch.randperm(VOCABULARY)[:samples]
            self.targets = torch.randn(samples, self.widths[-1]).double()
        for layer in self.layers:
            layer.double().train(training)
        if frozen is not None:
            for stage in frozen:
                self.layers[stage].requires_grad_(False)
            after = self.layers[(max(frozen, default=0) + 1) % self.stages]
            list(after.parameters())[-1].requires_grad_(False)

    def share(self) -> Share:
        """Make this rank's share, with its own copy of the stages."""
        stages = copy.deepcopy(self.layers)
        return share_of(stages, self.inputs[:1], self.trial.rank, self.ranks)

    def stage_inputs(self) -> list[list[Tensor]]:
        """Return the input of each stage for each micro-batch."""
        found = [list(self.inputs.tensor_split(self.pieces))]
        with torch.no_grad():
            for layer in self.layers[:-1]:
                found.append([layer(x) for x in found[-1]])
        return found

    def messages(self, rank: int) -> tuple[int, int]:
        """Return how many messages a rank must send in a step, and their bytes."""
        count, size = 0, 0
        for stage in range(rank, self.stages, self.ranks):
            for other, cut in ((stage + 1, stage + 1), (stage - 1, stage)):
                if 0 <= other < self.stages and other % self.ranks != rank:
                    count += self.pieces
                    size += self.samples * self.widths[cut] * 8
        return count, size

    def texts(self, actions: Sequence[Action]) -> str:
        """Return the names of actions. An unknown micro-batch is a question mark."""
        return texts(actions, self.ranks if self.chunks == 1 else None).replace("-1", "?")

    def values(self, inputs: Tensor, targets: Tensor) -> Values:
        """Return the loss of some samples, and its gradient on this rank."""
        parameters = [p for s in self.own for p in self.layers[s].parameters() if p.requires_grad]
        loss = mean_square(nn.Sequential(*self.layers)(inputs), targets)
        gradients = torch.autograd.grad(loss, parameters) if parameters else ()
        return loss.detach(), in_one_row(gradients)

    def wrong(self) -> dict[str, Values]:
        """Return the values that each mistake computes, by its key."""
        m, pieces = self.pieces, self.inputs.tensor_split(self.pieces)
        each = list(map(self.values, pieces, self.targets.tensor_split(m)))
        weights = {
            "loss_not_divided": [1.0] * m,
            "remainder_unweighted": [1 / m] * m,
            "not_accumulated": [0.0] * (m - 1) + [len(pieces[-1]) / self.samples],
        }
        return {
            key: tuple(sum(w * one for w, one in zip(of_key, values)) for values in zip(*each))  # noqa: B905
            for key, of_key in weights.items()
        }
