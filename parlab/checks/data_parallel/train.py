"""Exercise `train`.

Which samples each step trained on is told by the model's inputs, so that a plain loop on one
process can be given the same global batches: nothing of the learner's is compared with itself.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import (
    equal_numbers,
    equal_states,
    instead,
    is_a,
    same_states,
    wrong_names,
)
from parlab.checks.data_parallel import sums
from parlab.checks.data_parallel.models import A_FLOAT, Awkward, awkward_model
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import Shard, State, state_of, tokens, trainable
from parlab.checks.trial import Trial
from parlab.checks.untouched import generators, unchanged

# Losses of float64 runs may differ by the order of sums, which training amplifies a little.
TOLERANCE = 1e-7
LOSS = "the loss of step {}"

MakeOptimizer = Callable[..., torch.optim.Optimizer]
SGD: MakeOptimizer = partial(torch.optim.SGD, lr=0.2, momentum=0.9)
ADAM: MakeOptimizer = partial(torch.optim.Adam, lr=0.01)

MISTAKES = Mistakes(
    **{key: sums.MISTAKES.texts[key] for key in ("not_summed", "equal_weights", "sum_for_mean")},
    no_broadcast=(
        "in the first forward pass `{name}` is not rank 0's: broadcast parameters and buffers "
        "before the first step"
    ),
    broadcast_again=(
        "{got} bytes are broadcast where {right} are enough: once, before the first step. Equal "
        "gradients keep equal models equal"
    ),
    steps=(
        "optimizer.step() was called {got} times where {right} are right: once for each global "
        "batch, the uneven last one too, and on a rank without samples too"
    ),
    same_samples=(
        "in step {step} several ranks train on sample {sample}: each is to train on its own share "
        "of the global batch, and together on the batch"
    ),
    batch_of_each_rank=(
        "step {step} trains on {got} samples in all where {right} are right: batch_size is that "
        "of the global batch, all ranks together"
    ),
    same_batches=(
        "epochs 0 and 1 train on the same batches: the shuffle is to be a new one in each epoch"
    ),
    other_batches=(
        "step {step} trains on other samples than with {ranks} ranks, so the learning curves "
        "cannot be the same"
    ),
    not_zeroed="the gradients of earlier steps are still in .grad: is zero_grad() missing?",
    stale_gradients=(
        "the first step goes along what was in .grad before the training began, too: zero the "
        "gradients before each backward pass, not only after each step"
    ),
    share_of_batch_size=(
        "each share is a rank's number of samples over batch_size: the last global batch of an "
        "epoch has fewer, so its shares do not add up to 1. Divide by what the batch really has"
    ),
    own_loss=(
        "each rank returns the loss on its own share: sum share · loss over the ranks, so that "
        "all return the loss over the global batch"
    ),
    own_part=(
        "each rank returns its own part of the loss, share · loss: sum the parts over the ranks, "
        "so that all return the loss over the global batch"
    ),
    loss_of_mean="the losses are the plain mean of the ranks' losses: weight each with its share",
    loss_of_sum="the losses are the sum of the ranks' losses: weight each with its share",
    loss_after="the losses are those after the step, and those before it are asked for",
)


@dataclass(frozen=True)
class Run:
    """A training run: `size` samples in global batches of `batch_size`."""

    size: int
    batch_size: int
    epochs: int
    make_optimizer: MakeOptimizer

    def batch_sizes(self) -> list[int]:
        starts = range(0, self.size, self.batch_size)
        return [min(self.batch_size, self.size - start) for start in starts] * self.epochs

    def __str__(self) -> str:
        optimizer = self.make_optimizer.func.__name__
        return f"{optimizer}, {self.size} samples, batch_size {self.batch_size}"


class Recorded(nn.Module):
    """Notes on which samples each step trains. Inputs are (batch, 2): a token, the sample's number.

    A sample belongs to the step in which the backward pass came through it.
    """

    def __init__(self, model: Awkward) -> None:
        super().__init__()
        self.model = model
        self.steps: list[set[int]] = [set()]
        self.start: State | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.model(inputs[:, 0])
        if scores.requires_grad:
            self.start = self.start or state_of(self.model)
            numbers = inputs[:, 1].tolist()
            scores.register_hook(lambda _: self.steps[-1].update(numbers))
        return scores

    def step(self, *_: Any) -> None:
        """The optimizer took a step."""
        self.steps.append(set())


@dataclass
class Replay:
    """A serial run: the mean losses on each rank's samples, before and after each step."""

    state: State
    before: list[list[float]]
    after: list[list[float]]  # empty where nobody asks


Batches = list[list[list[int]]]  # [step][rank] → samples
Weigh = Callable[[list[list[int]]], list[float]]


@check_of(MISTAKES)
def train(check: Check) -> str:
    """Check runs with uneven and with nearly empty last batches against a plain loop."""
    batch_size = check.draw.choice([9, 11, 13])
    tail = check.draw.randint(2, batch_size - 1)
    runs = [
        Run(2 * batch_size + tail, batch_size, 2, SGD),
        Run(2 * batch_size + 1, batch_size, 2, SGD),
        Run(2 * batch_size, batch_size, 2, ADAM),
        Run(9, 2, 2, SGD),  # from the first step on, ranks 2, 3, … have no samples
    ]
    seen: dict[Run, tuple[int, Batches]] = {}
    for trial in check.trials():
        for run in runs if trial.size in (1, check.world_size) else runs[:1]:
            trial.situation = f"{run}, on {trial.size} ranks"
            ranks, batches = seen.get(run, (0, None))
            seen[run] = trial.size, _train(trial, run, ranks, batches)
    return (
        f"the losses and weights of a plain loop on the same batches, step by step, on 1 to "
        f"{check.world_size} ranks, with SGD and Adam; a new shuffle in each epoch"
    )


def _train(trial: Trial, run: Run, earlier_ranks: int, earlier: Batches | None) -> Batches:
    recorded = Recorded(awkward_model(trial.draw, trial.rank))
    inputs, targets = tokens(trial.draw, recorded.model, run.size)
    inputs = torch.stack([inputs, torch.arange(run.size)], dim=1)
    given = inputs.clone(), targets.clone()
    optimizer = run.make_optimizer(recorded.model.parameters())
    optimizer.register_step_post_hook(recorded.step)
    start = trial.gather(copy.deepcopy(recorded.model))[0]
    arguments = (inputs, targets, run.batch_size, run.epochs, trial.comm)
    leave_gradients(recorded.model)
    with generators() as watched:
        losses = trial.run(recorded, optimizer, *arguments)
    everyone = trial.gather([sorted(samples) for samples in recorded.steps[:-1]])
    states = trial.gather(state_of(recorded.model))
    trial.require(
        lambda: form(losses),
        lambda: unchanged("`inputs`", inputs, given[0]),
        lambda: unchanged("`targets`", targets, given[1]),
        watched.moved,
        lambda: started(recorded.start, state_of(start)),
    )
    batches: Batches = [list(shares) for shares in zip_longest(*everyone, fillvalue=[])]
    trial.require(
        lambda: apart(batches, run),
        lambda: steps(everyone[trial.rank], losses, run),
        lambda: right_batches(batches, run),
        lambda: new_shuffle(batches, run),
        lambda: as_before(batches, earlier, earlier_ranks),
        lambda: broadcast_once(trial, recorded.model),
    )
    replays = partial(replay, start, run, given, batches)
    right = replays(by_share)
    trial.require(
        lambda: other_training(states, replays, right, run),
        lambda: equal_states(states[trial.rank], right.state, "after training, {}", TOLERANCE),
    )
    curves, right_curve = trial.gather(losses), curve(right.before, batches)
    trial.require(
        lambda: other_losses(curves, right, replays, batches),
        lambda: equal_numbers(curves[trial.rank], right_curve, LOSS, TOLERANCE),
    )
    return batches


def leave_gradients(model: Awkward) -> None:
    """What something else before the training may have left in `.grad`."""
    for parameter in trainable(model).values():
        parameter.grad = torch.full_like(parameter, 0.25)


def by_share(shares: list[list[int]]) -> list[float]:
    total = sum(map(len, shares))
    return [len(share) / total for share in shares]


def equally(shares: list[list[int]]) -> list[float]:
    return [1 / len(shares)] * len(shares)


def unweighted(shares: list[list[int]]) -> list[float]:
    return [1.0] * len(shares)


def over_batch_size(batch_size: int) -> Weigh:
    return lambda shares: [len(share) / batch_size for share in shares]


def alone(rank: int, weigh: Weigh) -> Weigh:
    """The samples of this rank only."""
    return lambda shares: [w * (r == rank) for r, w in enumerate(weigh(shares))]


def replay(
    start: Awkward,
    run: Run,
    data: Shard,
    batches: Batches,
    weigh: Weigh,
    *,
    zero: Literal["before", "after", "never"] = "before",
    look_after: bool = False,
) -> Replay:
    """Train a copy of `start` on one process, each share of each batch weighted as given.

    `zero`: whether gradients are zeroed before each backward pass, only after each step, or never.
    """
    model = copy.deepcopy(start)
    leave_gradients(model)
    optimizer = run.make_optimizer(model.parameters())
    inputs, targets = data

    def means(shares: list[list[int]]) -> list[Tensor]:
        return [
            F.cross_entropy(model(inputs[share, 0]), targets[share])
            if share
            else torch.zeros((), dtype=torch.float64)
            for share in shares
        ]

    before, after = [], []
    for shares in batches:
        if zero == "before":
            optimizer.zero_grad()
        losses = means(shares)
        weighted = zip(weigh(shares), losses, shares, strict=True)
        counted = [weight * loss for weight, loss, share in weighted if share and weight]
        if counted:  # else all gradients stay None, and a step leaves even its momentum alone
            sum(counted).backward()
        optimizer.step()
        if zero == "after":  # in place: `unused` keeps its momentum
            optimizer.zero_grad(set_to_none=False)
        before.append([loss.item() for loss in losses])
        if look_after:
            after.append([loss.item() for loss in means(shares)])
    return Replay(state_of(model), before, after)


def curve(losses: list[list[float]], batches: Batches, weigh: Weigh = by_share) -> list[float]:
    """The weighted sum of the ranks' losses, step by step."""
    return [
        sum(w * loss for w, loss in zip(weigh(shares), step, strict=True))
        for shares, step in zip(batches, losses, strict=True)
    ]


def form(losses: Any) -> Finding | None:
    if found := is_a(losses, list, f"a list, each loss {A_FLOAT}"):
        return found
    return next(filter(None, (is_a(loss, float, A_FLOAT, "a loss") for loss in losses)), None)


def started(state: State | None, right: State) -> Finding | None:
    wrong = wrong_names(state, right) if state else []
    return MISTAKES.no_broadcast(name=wrong[0]) if wrong else None


def apart(batches: Batches, run: Run) -> Finding | None:
    """Whether no two ranks train on the same sample in a step, and not on too many together."""
    for step, shares in enumerate(batches):
        samples = [sample for share in shares for sample in share]
        for sample in samples:
            if samples.count(sample) > 1:
                return MISTAKES.same_samples(step=step, sample=sample)
        if len(samples) > run.batch_size:
            return MISTAKES.batch_of_each_rank(step=step, got=len(samples), right=run.batch_size)
    return None


def steps(taken: list[list[int]], losses: list[float], run: Run) -> Finding | None:
    got, right = len(taken), len(run.batch_sizes())
    if got != right:
        return MISTAKES.steps(got=got, right=right)
    return None if len(losses) == right else evidence(f"{len(losses)} losses for {right} steps")


def right_batches(batches: Batches, run: Run) -> Finding | None:
    """Whether each step's shares are one global batch, and each epoch's batches the data set."""
    for step, (shares, size) in enumerate(zip(batches, run.batch_sizes(), strict=True)):
        counts = [len(share) for share in shares]
        if sum(counts) != size:
            return evidence(f"step {step} trains on {sum(counts)} samples where {size} are right")
        if max(counts) - min(counts) > 1:
            return evidence(f"step {step} gives the ranks {counts} samples: share them evenly")
    an_epoch = len(batches) // run.epochs
    for epoch in range(run.epochs):
        trained = set().union(*_whole(batches)[epoch * an_epoch :][:an_epoch])
        if missing := set(range(run.size)) - trained:
            return evidence(f"epoch {epoch} leaves out sample {min(missing)}")
    return None


def _whole(batches: Batches) -> list[set[int]]:
    return [{sample for share in shares for sample in share} for shares in batches]


def new_shuffle(batches: Batches, run: Run) -> Finding | None:
    whole, an_epoch = _whole(batches), len(batches) // run.epochs
    if whole[:an_epoch] == whole[an_epoch : 2 * an_epoch]:
        return MISTAKES.same_batches()
    return None


def as_before(batches: Batches, earlier: Batches | None, ranks: int) -> Finding | None:
    now, before = _whole(batches), _whole(earlier or batches)
    for step in range(len(now)):
        if now[step] != before[step]:
            return MISTAKES.other_batches(step=step, ranks=ranks)
    return None


def broadcast_once(trial: Trial, model: Awkward) -> Finding | None:
    once = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    calls = trial.calls[trial.rank]

    def handed(op: str) -> int:
        return sum(call.bytes for call in calls if call.op == op)

    # What was reduced to one rank is broadcast from there: that is an all-reduce.
    got = handed("broadcast") - handed("reduce")
    if got >= 2 * once:
        return MISTAKES.broadcast_again(got=got, right=once)
    return None


def other_training(
    states: list[State], replays: Callable[..., Replay], right: Replay, run: Run
) -> Finding | None:
    """What the ranks have trained instead, each rank's state known to all."""
    size = len(states)

    def wrong() -> Iterator[tuple[list[State], Finding]]:
        yield [replays(by_share, zero="never").state] * size, MISTAKES.not_zeroed()
        yield [replays(by_share, zero="after").state] * size, MISTAKES.stale_gradients()
        yield [replays(equally).state] * size, MISTAKES.equal_weights()
        yield [replays(unweighted).state] * size, MISTAKES.sum_for_mean()
        too_small = replays(over_batch_size(run.batch_size))
        yield [too_small.state] * size, MISTAKES.share_of_batch_size()
        for weigh in (by_share, unweighted):
            each = [replays(alone(rank, weigh)).state for rank in range(size)]
            yield each, MISTAKES.not_summed()

    return instead(states, [right.state] * size, wrong(), lambda a, b: same_states(a, b, TOLERANCE))


def other_losses(
    curves: list[list[float]], right: Replay, replays: Callable[..., Replay], batches: Batches
) -> Finding | None:
    """What all ranks return instead of the losses over the global batches."""
    size, before = len(curves), right.before

    def wrong() -> Iterator[tuple[list[list[float]], Finding]]:
        yield [[step[rank] for step in before] for rank in range(size)], MISTAKES.own_loss()
        shares = [by_share(shares) for shares in batches]
        parts = [
            [w[rank] * step[rank] for w, step in zip(shares, before, strict=True)]
            for rank in range(size)
        ]
        yield parts, MISTAKES.own_part()
        yield [curve(before, batches, equally)] * size, MISTAKES.loss_of_mean()
        yield [curve(before, batches, unweighted)] * size, MISTAKES.loss_of_sum()
        after = replays(by_share, look_after=True).after
        yield [curve(after, batches)] * size, MISTAKES.loss_after()

    return instead(
        curves,
        [curve(before, batches)] * size,
        wrong(),
        lambda a, b: equal_numbers(a, b, LOSS, TOLERANCE) is None,
    )
