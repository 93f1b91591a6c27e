"""Exercise `train`: a plain loop on one process replays the batches that the ranks trained on."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import (
    equal_states,
    explained,
    has_type,
    same,
    same_states,
    wrong_names,
)
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import Shard, State
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import generators, unchanged
from parlab.checks.data_parallel import _sums
from parlab.checks.data_parallel._batches import divided
from parlab.checks.data_parallel._models import A_FLOAT, Awkward, awkward_model

TOLERANCE, EPOCHS = 1e-7, 2  # training amplifies the rounding of float64 sums
SGD = partial(torch.optim.SGD, lr=0.2, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01)

MISTAKES = Mistakes(
    **{k: _sums.MISTAKES.texts[k] for k in ("not_summed", "equal_weights", "sum_for_mean")},
    no_broadcast=(
        "{name} is not rank 0's in the first forward pass. Broadcast parameters and buffers before "
        "the first step"
    ),
    steps=(
        "`step()` of the given optimizer is called {got} times, expected {right}: once for each "
        "global batch, which has batch_size samples on all ranks together, and fewer at the end of "
        "an epoch. Ranks without samples take the step, too"
    ),
    other_batches=(
        "step {step} trains on other samples than in an earlier call with the same data set, on as "
        "many ranks or more. Shuffle in the same way in each call and for any number of ranks"
    ),
    share_of_batch_size=(
        "the shares are divided by batch_size, but the last global batch of an epoch has fewer "
        "samples. Divide by the number that it has"
    ),
    own_part=(
        "each rank returns its own part of the loss, share * loss. Sum the parts over the ranks"
    ),
)


Run = tuple[int, int, Callable[..., torch.optim.Optimizer]]  # samples, batch_size, optimizer
Batches = list[list[list[int]]]  # [step][rank] → samples
# Weights of the ranks' losses, from numbers of samples (steps × ranks), batch_size, and the rank.
WEIGHTS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "right": lambda n, batch_size, rank: n / n.sum(1, keepdims=True),
    "equal_weights": lambda n, batch_size, rank: np.full(n.shape, 1 / n.shape[1]),
    "sum_for_mean": lambda n, batch_size, rank: np.ones(n.shape),
    "share_of_batch_size": lambda n, batch_size, rank: n / batch_size,
    "not_summed": lambda n, batch_size, rank: np.ones(n.shape) * (np.arange(n.shape[1]) == rank),
}


class Recorded(nn.Module):
    """A model that records the samples of each step. Inputs are (batch, 2): token, number.

    A sample belongs to the first step after its backward pass.
    """

    def __init__(self, model: Awkward) -> None:
        super().__init__()
        self.model = model
        self.steps: list[set[int]] = [set()]
        self.start: State | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.model(inputs[:, 0])
        if scores.requires_grad:
            if len(self.steps) == 1:  # a rank may have no samples before the first update
                self.start = self.start or models.state_of(self.model)
            numbers = inputs[:, 1].tolist()
            scores.register_hook(lambda _: self.steps[-1].update(numbers))
        return scores

    def step(self, *_: Any) -> None:
        """Begin the next step. The optimizer calls this."""
        self.steps.append(set())


@check_of(MISTAKES)
def train(check: Check) -> str:
    """Check runs with full, smaller, and nearly empty last batches against a plain loop."""
    n = check.draw.choice([9, 11, 13])
    smaller = 2 * n + check.draw.randint(2, n - 1)
    runs: list[Run] = [(smaller, n, SGD), (2 * n + 1, n, SGD), (2 * n, n, ADAM), (9, 2, SGD)]
    cases = {f"{run[2].func.__name__}, {run[0]} samples, batch_size {run[1]}": run for run in runs}
    first = dict([*cases.items()][:1])
    earlier: dict[str, Batches] = {}
    for trial in check.trials():
        for name, run in trial.cases(cases if trial.size in (1, check.world_size) else first):
            earlier[name] = _train(trial, run, earlier.get(name))
    return (
        f"the losses and weights of a plain loop on the same batches, step by step, on 1 to "
        f"{check.world_size} ranks, with SGD and Adam; a new shuffle in each epoch"
    )


def _train(trial: Trial, run: Run, earlier: Batches | None) -> Batches:
    size, batch_size, make_optimizer = run
    recorded = Recorded(awkward_model(trial.draw, trial.rank))
    fill_gradients(recorded.model)
    inputs, targets = models.tokens(trial.draw, recorded.model, size)
    inputs = torch.stack([inputs, torch.arange(size)], dim=1)
    given = inputs.clone(), targets.clone()
    optimizer = make_optimizer(recorded.model.parameters())
    optimizer.register_step_post_hook(recorded.step)
    start = trial.gather(copy.deepcopy(recorded.model))[0]
    arguments = (inputs, targets, batch_size, EPOCHS, trial.comm)
    with generators() as watched:
        losses = trial.run(recorded, optimizer, *arguments)
    everyone = trial.gather([sorted(samples) for samples in recorded.steps[:-1]])
    batches: Batches = [list(shares) for shares in zip_longest(*everyone, fillvalue=[])]
    sizes = [len(batch) for batch in torch.arange(size).split(batch_size)] * EPOCHS
    trial.require(
        lambda: has_type(losses, list, f"a list, each loss {A_FLOAT}"),
        lambda: next(filter(None, (has_type(n, float, A_FLOAT, "a loss") for n in losses)), None),
        lambda: unchanged("`inputs`", inputs, given[0]),
        lambda: unchanged("`targets`", targets, given[1]),
        watched.moved,
        lambda: started(recorded.start, models.state_of(start)),
        lambda: right_steps(len(everyone[trial.rank]), len(sizes)),
        lambda: right_batches(batches, sizes, earlier or batches),
        lambda: broadcast_once(trial, recorded.model),
    )
    counts = np.array([[len(share) for share in shares] for shares in batches])
    weights = {key: weigh(counts, batch_size, trial.rank) for key, weigh in WEIGHTS.items()}
    replays = partial(replay, start, make_optimizer, given, batches)
    right, rank_losses = replays(weights["right"])
    state, parts = models.state_of(recorded.model), weights["right"] * rank_losses
    keys = set(trial.gather(explanation(state, right, replays, weights)))
    own = parts[:, trial.rank]
    own_parts = all(trial.gather(same(losses, own, TOLERANCE)))
    variants = {"own_part": own} if own_parts else {}
    name = "the list of losses"
    trial.require(
        lambda: getattr(MISTAKES, keys.pop())() if len(keys) == 1 and None not in keys else None,
        lambda: equal_states(state, right, "after training, {}", TOLERANCE),
        lambda: explained(np.array(losses), parts.sum(1), variants, MISTAKES, name, TOLERANCE),
    )
    return batches


def fill_gradients(model: Awkward) -> None:
    """Fill each `.grad`, as if an earlier run had left it."""
    for parameter in models.trainable(model).values():
        parameter.grad = torch.full_like(parameter, 0.25)


def replay(
    start: Awkward,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    data: Shard,
    batches: Batches,
    weights: np.ndarray,
) -> tuple[State, np.ndarray]:
    """Train a copy of `start` on one process.

    `weights` are the factors of the ranks' mean losses (steps × ranks). Return the state after
    training, and the mean loss of each step and rank.
    """
    model, (inputs, targets) = copy.deepcopy(start), data
    fill_gradients(model)
    optimizer = make_optimizer(model.parameters())
    rank_losses = np.zeros(weights.shape)
    for step, shares in enumerate(batches):
        optimizer.zero_grad()
        for rank, share in enumerate(shares):
            if share:
                loss = F.cross_entropy(model(inputs[share, 0]), targets[share])
                rank_losses[step, rank] = loss.item()
                if weights[step, rank]:  # else gradients stay None, and momentum does not change
                    (weights[step, rank] * loss).backward()
        optimizer.step()
    return models.state_of(model), rank_losses


def started(state: State | None, right: State) -> Finding | None:
    wrong = wrong_names(state, right) if state else []
    return MISTAKES.no_broadcast(name=wrong[0]) if wrong else None


def right_steps(got: int, right: int) -> Finding | None:
    return None if got == right else MISTAKES.steps(got=got, right=right)


def right_batches(batches: Batches, sizes: list[int], earlier: Batches) -> Finding | None:
    """Require that the ranks divide each batch, and that each epoch has a new shuffle."""
    length = len(sizes) // EPOCHS
    for epoch in range(EPOCHS):
        if found := divided(batches[epoch * length :][:length], sizes[:length]):
            return observed(f"in epoch {epoch}, {found.text}")
    whole, before = ([set().union(*shares) for shares in every] for every in (batches, earlier))
    if whole[:length] == whole[length:]:
        return observed("epochs 0 and 1 train on the same batches: shuffle anew in each epoch")
    for step, (now, right) in enumerate(zip(whole, before, strict=True)):
        if now != right:
            return MISTAKES.other_batches(step=step)
    return None


def broadcast_once(trial: Trial, model: Awkward) -> Finding | None:
    right = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    # A reduce followed by a broadcast is an all-reduce, which does not count.
    signs = {"broadcast": 1, "reduce": -1}
    got = sum(signs.get(call.op, 0) * call.bytes for call in trial.calls[trial.rank])
    if got < 2 * right:
        return None
    return observed(
        f"{got} bytes are broadcast, expected {right}: once, before the first step. Equal "
        "gradients keep the models equal"
    )


def explanation(
    state: State,
    right: State,
    replays: Callable[..., tuple[State, np.ndarray]],
    weights: dict[str, np.ndarray],
) -> str | None:
    """Return the only mistake whose replay ends in this rank's `state`, or None."""
    if same_states(state, right, TOLERANCE):
        return None
    wrong = {key: replays(weights[key])[0] for key in weights if key != "right"}
    wrong = {key: made for key, made in wrong.items() if not same_states(made, right, TOLERANCE)}
    keys = [key for key, made in wrong.items() if same_states(state, made, TOLERANCE)]
    return keys[0] if len(keys) == 1 else None
