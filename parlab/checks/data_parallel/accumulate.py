"""Exercise `accumulate`."""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal_states, instead, is_a
from parlab.checks.data_parallel import sums
from parlab.checks.data_parallel.models import A_FLOAT, awkward_model, gradients_of
from parlab.checks.endings import idle_ranks_left
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import (
    TOLERANCE,
    State,
    add,
    gradients,
    loss_sum,
    state_of,
    tokens,
    trainable,
)
from parlab.checks.trial import Trial
from parlab.checks.untouched import unchanged

MISTAKES = Mistakes(
    not_finished="finish() is never called, after {own} micro-batches",
    ranks_left=(
        "not every rank calls finish() equally often, and those that call it once more wait for "
        "the others: it is one synchronisation of all ranks. Each calls it once, after its last "
        "micro-batch, and a rank without micro-batches too"
    ),
    finished_often="finish() is called {got} times where once is right: each call sums once more",
    finished_early="finish() comes before the last backward pass, which adds to .grad after it",
    no_sync_forgotten=(
        "{got} of {own} backward passes are outside no_sync(). The first of them sends the "
        "buckets; what the later ones add to .grad never leaves the rank, so the ranks' gradients "
        "differ. All but the last run within no_sync()"
    ),
    not_the_last=(
        "backward pass {got} of {own} is outside no_sync() and sends the buckets: what the later "
        "ones add to .grad never leaves the rank. It must be the last"
    ),
    never_synchronised=(
        "the last backward pass runs within no_sync() too, so that nothing is sent before "
        "finish() and nothing overlaps"
    ),
    passes=(
        "{got} backward passes for {own} micro-batches: one for each frees its activations before "
        "the next, which is what micro-batches are for"
    ),
    unweighted=(
        "the micro-batches' gradients are summed without weights: the step is as many times too "
        "long as there are micro-batches"
    ),
    equal_micro_batches=(
        "each micro-batch of a rank weighs the same: in the last, smaller one a sample weighs "
        "more. Weight with len(inputs) / total"
    ),
    mean_of_each_rank=(
        "each micro-batch weighs 1/k, and the ranks are summed without weights: weight with "
        "len(inputs) / total"
    ),
    mean_of_means=(
        "each micro-batch of a rank, and each rank, weighs the same, whatever its size: weight "
        "with len(inputs) / total"
    ),
    own_total="each rank's weights add up to 1: divide by `total`, the size of the global batch",
    zeroed="only the gradient of the last micro-batch is left: .grad is to add up over all of them",
)


class Replica(nn.Module):
    """What `BucketedDataParallel` does, at its plainest: no buckets, and it notes how it was used.

    The first backward pass outside `no_sync()` sends each gradient as it is by then, over a group
    that sums at once. What later passes add stays on this rank.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.model, self.group = model, group
        self.synchronise = True
        self.synchronised: list[bool] = []  # of each backward pass
        self.finished: list[int] = []  # backward passes before each finish()
        self.sent: State = {}
        *_, self._first_ready = trainable(model)
        for name, parameter in trainable(model).items():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._ready(name, p))

    def _ready(self, name: str, parameter: Tensor) -> None:
        if name == self._first_ready:
            self.synchronised.append(self.synchronise)
        if self.synchronise and name not in self.sent:
            self.sent[name] = parameter.grad.clone()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.synchronise = False
        try:
            yield
        finally:
            self.synchronise = True

    def finish(self) -> None:
        self.finished.append(len(self.synchronised))
        for name, parameter in trainable(self.model).items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            total = self.sent.get(name, parameter.grad)
            later = parameter.grad - total
            total = total.clone()
            dist.all_reduce(total, group=self.group)
            parameter.grad.copy_(total + later)
        self.sent = {}

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


@check_of(MISTAKES)
def accumulate(check: Check) -> str:
    """Check uneven micro-batches, and a rank without any, on 1, 2, … ranks."""
    for trial in check.trials():
        # Of three and three and two samples, fewer on later ranks, none on the fourth.
        _on_micro_batches(trial, [[3, 3, 2][: max(3 - rank, 0)] for rank in range(trial.size)])
    return "one synchronisation, in the last backward pass; every sample weighs the same"


def _on_micro_batches(trial: Trial, sizes: list[list[int]]) -> None:
    trial.situation = f"micro-batches on the ranks: {sizes}"
    total = sum(map(sum, sizes))
    model = awkward_model(trial.draw)
    data = [[tokens(trial.draw, model, n) for n in rank] for rank in sizes]
    batches = [batch for rank in data for batch in rank]
    found = [gradients(model, *batch) for batch in batches]
    loss = sum(loss_sum(model, *batch) for batch in batches) / total
    right = add(found, [n / total for rank in sizes for n in rank])
    own = data[trial.rank]
    mine = [(inputs.clone(), targets.clone()) for inputs, targets in own]
    before = state_of(model)
    replica = Replica(model, trial.group)
    part = trial.run(
        replica,
        mine,
        total,
        explain=lambda endings: idle_ranks_left(endings, sizes, MISTAKES.ranks_left()),
    )
    parts, everyone = trial.gather(part), trial.gather(gradients_of(model))
    trial.require(
        lambda: uses(replica, len(own)),
        lambda: other_weights(everyone, found, sizes),
        lambda: equal_states(everyone[trial.rank], right, "the gradient of {}", TOLERANCE),
        lambda: is_a(part, Real, A_FLOAT),
        lambda: equal_states(state_of(model), before, "{}", 0.0),
        lambda: unchanged("`micro_batches`", mine, own),
        lambda: sums.loss_parts(parts, loss),
    )


def uses(replica: Replica, own: int) -> Finding | None:
    passes, synchronised = len(replica.synchronised), sum(replica.synchronised)
    if passes != own:
        return MISTAKES.passes(got=passes, own=own)
    if not replica.finished:
        return MISTAKES.not_finished(own=own)
    if len(replica.finished) > 1:
        return MISTAKES.finished_often(got=len(replica.finished))
    if replica.finished[0] < passes:
        return MISTAKES.finished_early()
    if synchronised > 1:
        return MISTAKES.no_sync_forgotten(got=synchronised, own=own)
    if own and not synchronised:
        return MISTAKES.never_synchronised()
    if own and not replica.synchronised[-1]:
        return MISTAKES.not_the_last(got=replica.synchronised.index(True) + 1, own=own)
    return None


def other_weights(
    everyone: list[State], found: list[State], sizes: list[list[int]]
) -> Finding | None:
    """With which other weights all ranks have summed the micro-batches' gradients, `found`."""
    total, ranks = sum(map(sum, sizes)), len(sizes)
    batches = [(n, rank) for rank in sizes for n in rank]  # samples, and those of the whole rank
    of_last = [n / total * (i == len(rank) - 1) for rank in sizes for i, n in enumerate(rank)]
    wrong = [
        ([1.0] * len(batches), MISTAKES.unweighted()),
        ([sum(rank) / total / len(rank) for _, rank in batches], MISTAKES.equal_micro_batches()),
        ([1 / len(rank) for _, rank in batches], MISTAKES.mean_of_each_rank()),
        ([1 / len(rank) / ranks for _, rank in batches], MISTAKES.mean_of_means()),
        ([n / sum(rank) for n, rank in batches], MISTAKES.own_total()),
        (of_last, MISTAKES.zeroed()),
    ]

    def on_all(weights: list[float]) -> list[State]:
        return [add(found, weights)] * ranks

    right = on_all([n / total for n, _ in batches])
    return instead(everyone, right, ((on_all(w), finding) for w, finding in wrong), sums.alike)
