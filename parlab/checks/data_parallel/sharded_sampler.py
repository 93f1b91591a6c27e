"""Exercise `sharded_sampler`."""

import itertools
from typing import Any

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import generators
from parlab.checks.data_parallel._batches import divided

Plan = list[list[list[int]]]  # [rank][step] → indices

EPOCHS = [0, 1, 2, 3, 4, 5, 10, 16, 100, 101]

MISTAKES = Mistakes(
    uneven_steps=(
        "the ranks make {steps} steps, expected the same number: a rank that leaves the loop early "
        "makes the others wait forever. An empty share is a step, too"
    ),
    batch_of_each_rank=(
        "each rank takes batch_size indices per step. batch_size is the size of the global batch, "
        "which all ranks share"
    ),
    other_batches=(
        "step {step} has other indices than on a single rank, such as {extra}, so the learning "
        "curves cannot be the same. Shuffle independently of `world_size`, and divide each global "
        "batch, not the whole data set"
    ),
    same_shuffle=(
        "epochs {one} and {other} have the same shuffle. Seed the generator with a number that is "
        "different in each epoch"
    ),
)


@check_of(MISTAKES)
def sharded_sampler(check: Check) -> str:
    """Check several numbers of ranks, sizes that do not divide evenly, and several epochs."""
    worlds = range(1, max(check.world_size, 5) + 1)
    with check.trial() as trial:
        cases = {}
        for ranks in worlds:
            sizes = _sizes(check, ranks)
            alone, shared = (_plans(trial, sizes, 1, n) for n in (1, ranks))
            for (size, batch_size), (batches,), plan in zip(sizes, alone, shared, strict=True):
                name = f"size {size}, batch_size {batch_size}, world_size {ranks}"
                cases[name] = (size, batch_size, batches, plan)
        trial.situation = "epoch 1"
        for question in (right_steps, right_batches):  # the first may explain the second
            for _, case in trial.cases(cases):
                if found := question(*case):
                    trial.fail(found)
        size, batch_size = 101, 8
        orders = {}
        for epoch in EPOCHS:
            ((share,),) = _plans(trial, [(size, batch_size)], epoch, 1)
            orders[epoch] = list(itertools.chain(*share))
        trial.situation = f"size {size}, batch_size {batch_size}, world_size 1"
        trial.require(lambda: shuffles(orders, batch_size))
    return (
        f"every index once, on {worlds[0]} to {worlds[-1]} ranks, in equal steps of one rank's "
        f"global batches; a new shuffle in each of {len(EPOCHS)} epochs"
    )


def _sizes(check: Check, ranks: int) -> list[tuple[int, int]]:
    """Return sizes of data sets and global batches. If a last batch is 1, some shares are empty."""
    draw = check.draw
    batch_size = ranks * draw.randint(2, 4) + draw.randint(0, ranks - 1)
    whole = batch_size * draw.randint(2, 4)
    return [
        (8 * ranks + 1, 2 * ranks),
        (whole + draw.randint(1, batch_size - 1), batch_size),
        (whole + 1, batch_size),
        (whole, batch_size),
        (batch_size - 1, batch_size),
        (7, 1),
    ]


def _plans(trial: Trial, sizes: list[tuple[int, int]], epoch: int, ranks: int) -> list[Plan]:
    """Return what the sampler returns for each rank; fail if the processes do not agree."""
    sampler = trial.check.function

    def of_all_ranks() -> list[list[Any]]:
        return [[sampler(*of, epoch, rank, ranks) for rank in range(ranks)] for of in sizes]

    trial.situation = f"epoch {epoch}, world_size {ranks}"
    with generators() as watched:
        shares = trial.run_function(of_all_ranks)
    trial.require(*(lambda share=share: form(share) for of in shares for share in of))
    plans = [[[step.tolist() for step in share] for share in of] for of in shares]
    everyone = trial.gather(plans)
    differ = observed("two processes return different indices: seed a generator of your own")
    alike = all(other == everyone[0] for other in everyone)
    trial.require(lambda: None if alike else differ, watched.moved)
    return plans


def form(share: Any) -> Finding | None:
    if found := has_type(share, list, "a list of tensors"):
        return found
    for step in share:
        if found := has_type(step, torch.Tensor, "a torch.Tensor", "a step's share"):
            return found
        name = "a step's share" if len(step) else "an empty share"
        if step.dtype != torch.int64:
            return COMMON.wrong_dtype(name=name, got=step.dtype, right=torch.int64)
        if step.dim() != 1:
            return COMMON.wrong_shape(name=name, got=tuple(step.shape), right="(samples,)")
    return None


def right_steps(size: int, batch_size: int, _: list[list[int]], plan: Plan) -> Finding | None:
    steps = [len(share) for share in plan]
    if len(set(steps)) > 1:
        return MISTAKES.uneven_steps(steps=steps)
    right, of_each_rank = (-(-size // (n * batch_size)) for n in (1, len(plan)))
    if steps[0] == right:
        return None
    if steps[0] == of_each_rank and len(plan[0][0]) == min(batch_size, size):
        return MISTAKES.batch_of_each_rank()
    return observed(
        f"{steps[0]} steps, expected {right}: the last global batch has the remaining indices, "
        "however few"
    )


def right_batches(size: int, batch_size: int, alone: list[list[int]], plan: Plan) -> Finding | None:
    """Require that the shares of a step form the same global batch as on a single rank."""
    for one, other in itertools.combinations(range(len(plan)), 2):
        if any(plan[one]) and plan[one] == plan[other]:
            return observed(f"ranks {one} and {other} have the same share")
    steps = list(zip(*plan, strict=True))
    if found := divided(steps, [min(batch_size, size - i) for i in range(0, size, batch_size)]):
        return found
    for step, shares in enumerate(steps):
        if extra := {i for share in shares for i in share} - {*alone[step]}:
            if len(plan) == 1:
                return observed("a second call with the same arguments returns other indices")
            return MISTAKES.other_batches(step=step, extra=min(extra))
    return None


def shuffles(orders: dict[int, list[int]], batch_size: int) -> Finding | None:
    """Require a new shuffle in each epoch; `orders[epoch]` are one rank's indices."""
    in_order = sorted(orders[0])
    if any(order in (in_order, in_order[::-1]) for order in orders.values()):
        return observed("the indices are in the order of the data set, not shuffled")
    batches = {epoch: _batches(order, batch_size) for epoch, order in orders.items()}
    if batches[0] <= _batches(in_order, batch_size):
        return observed("each global batch has neighbors of the data set. Shuffle all indices")
    for one, other in itertools.combinations(orders, 2):
        first, second = orders[one], orders[other]
        if first == second:
            return MISTAKES.same_shuffle(one=one, other=other)
        pairs = set(itertools.pairwise(first)) & set(itertools.pairwise(second))
        if batches[one] == batches[other] or len(pairs) > len(first) / 2:
            return observed(
                f"epochs {one} and {other} have the same batches, or mostly the same order. Draw a "
                "new permutation"
            )
    return None


def _batches(order: list[int], batch_size: int) -> set[frozenset[int]]:
    starts = range(0, len(order), batch_size)
    return {frozenset(order[start : start + batch_size]) for start in starts}
