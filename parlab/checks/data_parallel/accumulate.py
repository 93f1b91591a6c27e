"""Exercise `accumulate`."""

from numbers import Real

import torch

from parlab.checks.base.call_outcome import idle_ranks_left
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_states, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import gradients, loss_sum, state_of, tokens, trainable
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.data_parallel._models import A_FLOAT, awkward_model, gradients_of, inside
from parlab.checks.data_parallel._replica import Replica
from parlab.checks.data_parallel._sums import Weights, loss_parts, weighted_sum

MISTAKES = Mistakes(
    ranks_left=(
        "the ranks do not call finish() equally often, so those that call it once more wait for "
        "the others. Each rank calls it once, after its last micro-batch, or without any"
    ),
    no_sync_forgotten=(
        "all backward passes run outside no_sync(). The first one sends the buckets, and what the "
        "others add to .grad is never sent. Run all but the last within no_sync()"
    ),
    only_no_sync=(
        "all backward passes run within no_sync(), so no bucket is sent before finish(). Run the "
        "last one outside: it sends each bucket while it computes the next one"
    ),
    left_the_buffers=(
        "the gradient of {name} is no longer part of a buffer, so all-reduces of the buffers miss "
        "it. Keep each .grad, and change it or zero it only in place"
    ),
    unweighted="the micro-batches' gradients are added without weights, so the step is too long",
    own_total="the weights of each rank add up to 1. Divide by `total`, of the global batch",
    targets_counted=(
        "the weight of a micro-batch's mean loss is its number of targets, divided by `total`, and "
        "a sample has several targets. Divide the number of samples, `len(inputs)`"
    ),
    zeroed="only the last micro-batch's gradient is left. Let .grad add up over all of them",
)


@check_of(MISTAKES)
def accumulate(check: Check) -> str:
    """Check uneven micro-batches, and ranks without any, on 1, 2, … ranks."""
    for trial in check.trials():
        sizes = [[3, 3, 2][: max(3 - rank, 0)] for rank in range(trial.size)]
        name = f"micro-batches on the ranks: {sizes}"
        cases = {name: 1, f"{name}, with 4 targets for each sample": 4}
        for _, targets in trial.cases(cases):
            _on_micro_batches(trial, sizes, targets)
    return "one synchronization, in the last backward pass; every sample weighs the same"


def _on_micro_batches(trial: Trial, sizes: list[list[int]], each: int) -> None:
    """Check micro-batches whose samples have one target, or `each` targets, like text."""
    total, model = sum(map(sum, sizes)), awkward_model(trial.draw)
    model.register_forward_hook(lambda _, inputs, scores: scores.flatten(0, -2))
    data = [[tokens(trial.draw, model, n * each) for n in rank] for rank in sizes]
    if each > 1:
        data = [[(x.unflatten(0, (-1, each)), y) for x, y in rank] for rank in data]
    batches = [batch for rank in data for batch in rank]
    found = [gradients(model, *batch) for batch in batches]
    loss = sum(loss_sum(model, *batch) for batch in batches) / (total * each)
    own = data[trial.rank]
    given = [(inputs.clone(), targets.clone()) for inputs, targets in own]
    before = state_of(model)
    replica = Replica(model, trial.group)
    part = trial.run(
        replica,
        given,
        total,
        explain=lambda endings: idle_ranks_left(endings, sizes, MISTAKES.ranks_left()),
    )
    parts, everyone = trial.gather(part), trial.gather(gradients_of(model))
    trial.require(
        lambda: calls(replica, len(own)),
        lambda: activations_are_freed(replica),
        lambda: in_the_buffer(replica),
        lambda: weighted_sum(everyone, found, weights(sizes, each), trial.rank, mistakes=MISTAKES),
        lambda: has_type(part, Real, A_FLOAT),
        lambda: equal_states(state_of(model), before, "{}", 0.0),
        lambda: unchanged("`micro_batches`", given, own),
        lambda: loss_parts(parts, loss),
    )


def calls(replica: Replica, own: int) -> Finding | None:
    """Require a backward pass for each of a rank's micro-batches, and one synchronization."""
    outside = [i + 1 for i, outside in enumerate(replica.synchronized) if outside]
    if (got := len(replica.synchronized)) != own:
        return observed(
            f"backward passes: {got}, micro-batches: {own}. Run one backward pass for each: it "
            "frees the activations before the next micro-batch"
        )
    if replica.finished != [own]:
        return observed(
            f"the numbers of backward passes before each call of finish() are {replica.finished}, "
            f"expected {[own]}: one call, after the last pass"
        )
    if own > 1 and len(outside) == own:
        return MISTAKES.no_sync_forgotten()
    if own and not outside:
        return MISTAKES.only_no_sync()
    if outside != [own][:own]:
        return observed(
            f"backward passes outside no_sync(): {outside} of {own}, expected only the last. It "
            "sends the buckets, and gradients that a later pass adds to .grad are never sent"
        )
    return None


def activations_are_freed(replica: Replica) -> Finding | None:
    """Require that each backward pass frees what the forward pass kept, before the next begins."""
    for when, kept in replica.kept.items():
        if kept:
            return observed(
                f"when {when}, earlier forward passes still keep tensors for a backward pass: "
                f"{kept}, expected 0. Run each backward pass before the next forward pass, without "
                "retain_graph"
            )
    return None


def in_the_buffer(replica: Replica) -> Finding | None:
    for name, parameter in trainable(replica.model).items():
        if not inside(parameter.grad, replica.buffers[0]):
            return MISTAKES.left_the_buffers(name=name)
    return None


def weights(sizes: list[list[int]], each: int) -> Weights:
    """Return the micro-batches' weights on each rank: right ones, and those of each mistake.

    Args:
        each: number of targets of a sample.
    """
    total = sum(map(sum, sizes))
    batches = [(n, i == len(rank) - 1, rank) for rank in sizes for i, n in enumerate(rank)]

    def on_all_ranks(weights: list[float]) -> torch.Tensor:
        return torch.tensor([weights] * len(sizes), dtype=torch.float64)

    return on_all_ranks([n / total for n, _, _ in batches]), [
        ("unweighted", on_all_ranks([1.0 for _ in batches])),
        ("own_total", on_all_ranks([n / sum(rank) for n, _, rank in batches])),
        ("targets_counted", on_all_ranks([n * each / total for n, _, _ in batches])),
        ("zeroed", on_all_ranks([n / total * last for n, last, _ in batches])),
    ]
