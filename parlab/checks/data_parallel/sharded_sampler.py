"""Exercise `sharded_sampler`."""

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.compare import is_a
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.untouched import generators

Plan = list[list[list[int]]]  # [rank][step] → indices

EPOCHS = [0, 1, 2, 3, 4, 5, 10, 16, 100, 101]

MISTAKES = Mistakes(
    processes_differ=(
        "for the same arguments, two processes give other indices. Nobody sends the shuffle, so "
        "each must come to it by itself: torch.Generator().manual_seed(…), with what all know"
    ),
    uneven_steps=(
        "rank {many} makes {most} steps and rank {few} only {fewest}: rank {many} would wait for "
        "ever in its last all-reduce. An empty share is a step too"
    ),
    last_dropped="the last global batch, of {missing} indices, is left out: {steps} steps",
    last_merged="the last global batch is merged into the one before it: {steps} steps",
    batch_of_each_rank=(
        "each rank takes batch_size indices a step: batch_size is that of the global batch, all "
        "ranks together"
    ),
    same_share=(
        "ranks 0 and 1 train on the same share: their gradients are equal, and the other ranks' "
        "work is wasted. Each rank needs its own part of the batch"
    ),
    own_shuffles=(
        "index {twice} is in two shares and index {lost} in none: do the ranks cut one and the "
        "same shuffle? Neither `rank` nor an earlier call may change it"
    ),
    padded=(
        "index {twice} comes twice, and none is missing: its gradient weighs double. A share that "
        "is filled up, to be as long as the others, does that; uneven shares are fine"
    ),
    cut_off="index {lost} is in no share, and none comes twice: a part of the batches is cut off",
    unbalanced=(
        "step {step} gives the ranks {sizes} samples: all wait for the one with most. Shares may "
        "differ by one"
    ),
    other_batches=(
        "step {step} trains on other samples than a single rank does (on index {extra}, for one), "
        "so the learning curves cannot be the same. Cut each global batch into shares, not the "
        "whole data set, and let the shuffle not depend on `world_size`"
    ),
    not_shuffled="the indices come in the order of the data set: nothing is shuffled",
    shuffled_inside=(
        "every global batch holds the same stretch of the data set, shuffled only inside: samples "
        "that lie together (of one class, from one file) always stay together"
    ),
    same_shuffle=(
        "epochs {one} and {other} have the same shuffle, so they repeat the same batches: seed "
        "the generator with what is another number in each epoch"
    ),
    rotated=(
        "epochs {one} and {other} have the samples in the same order, only beginning elsewhere: "
        "samples that meet once in a batch meet again. Draw a new permutation"
    ),
    same_batches=(
        "epochs {one} and {other} have the same global batches, in another order or with another "
        "order inside: shuffle the indices themselves anew"
    ),
)


@dataclass(frozen=True)
class Case:
    """A data set to share, and how the sampler shares it: `alone` on one rank, `plan` on N."""

    size: int
    batch_size: int
    alone: Plan
    plan: Plan


@check_of(MISTAKES)
def sharded_sampler(check: Check) -> str:
    """Check for 1, 2, … ranks and more, on sizes that divide by nothing, in several epochs."""
    worlds = sorted({*range(1, check.world_size + 1), 3, 5})
    with check.trial() as trial:
        cases = []
        for ranks in worlds:
            sizes = _sizes(check, ranks)
            alone, shared = (_plans(trial, sizes, 1, n) for n in (1, ranks))
            cases += [Case(*of, *plans) for of, *plans in zip(sizes, alone, shared, strict=True)]
        if found := first_finding(cases):
            case, finding = found
            trial.situation = (
                f"size {case.size}, batch_size {case.batch_size}, world_size {len(case.plan)}"
            )
            trial.fail(finding)
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
    """Sizes of the data set and of the global batch. Tails of 1 leave most ranks nothing."""
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
    """What the sampler says for each rank; fails where the processes do not say the same."""
    sampler = trial.check.function

    def of_all_ranks() -> list[list[Any]]:
        return [[sampler(*of, epoch, rank, ranks) for rank in range(ranks)] for of in sizes]

    trial.situation = f"epoch {epoch}, world_size {ranks}"
    with generators() as watched:
        shares = trial.run_function(of_all_ranks)
    trial.require(*(lambda of=of: form(of) for of in shares))
    plans = [[[step.tolist() for step in share] for share in of] for of in shares]
    everyone = trial.gather(plans)
    trial.require(lambda: alike(everyone), watched.moved)
    return plans


def first_finding(cases: list[Case]) -> tuple[Case, Finding] | None:
    """Asks all cases one question before the next: what is plain in one case may look like
    another mistake in the other."""
    for question in (steps_alike, all_steps, coverage, balance, batches_of_one_rank):
        for case in cases:
            if (finding := question(case)) is not None:
                return case, finding
    return None


def form(shares: list[Any]) -> Finding | None:
    for share in shares:
        if found := is_a(share, list, "a list of tensors"):
            return found
        for step in share:
            name = "a step's share"
            if found := is_a(step, torch.Tensor, "a torch.Tensor", name):
                return found
            if step.dtype != torch.int64:
                name = name if len(step) else "an empty share"
                return COMMON.wrong_dtype(name=name, got=step.dtype, right=torch.int64)
            if step.dim() != 1:
                return COMMON.wrong_shape(name=name, got=tuple(step.shape), right="(samples,)")
    return None


def alike(everyone: list[list[Plan]]) -> Finding | None:
    return None if all(p == everyone[0] for p in everyone) else MISTAKES.processes_differ()


def steps_alike(case: Case) -> Finding | None:
    steps = [len(share) for share in case.plan]
    if len(set(steps)) == 1:
        return None
    few, many = steps.index(min(steps)), steps.index(max(steps))
    return MISTAKES.uneven_steps(many=many, most=max(steps), few=few, fewest=min(steps))


def all_steps(case: Case) -> Finding | None:
    steps, right = len(case.plan[0]), -(-case.size // case.batch_size)
    if steps == right:
        return None
    counts = [sum(len(share[step]) for share in case.plan) for step in range(steps)]
    if steps == right - 1:
        if sum(counts) == case.size and case.size > steps * case.batch_size:
            return MISTAKES.last_merged(steps=steps)
        if counts == [case.batch_size] * steps:
            return MISTAKES.last_dropped(missing=case.size - sum(counts), steps=steps)
    if counts and max(len(share[0]) for share in case.plan) == case.batch_size > 1:
        return MISTAKES.batch_of_each_rank()
    return evidence(
        f"{steps} steps, of {counts} indices together, where {right} global batches are right"
    )


def coverage(case: Case) -> Finding | None:
    """Nothing twice, nothing lost."""
    plan, size = case.plan, case.size
    if len(plan) > 1 and plan[0] == plan[1] and any(plan[0]):
        return MISTAKES.same_share()
    counts = Counter(i for share in plan for step in share for i in step)
    beyond = [i for i in counts if not 0 <= i < size]
    lost = [i for i in range(size) if i not in counts]
    twice = [i for i, count in counts.items() if count > 1]
    if beyond:
        return evidence(f"index {beyond[0]} is not in the data set")
    if lost and twice and len(plan) > 1:
        return MISTAKES.own_shuffles(twice=twice[0], lost=lost[0])
    if lost and twice:
        return evidence(f"index {twice[0]} comes twice and index {lost[0]} never")
    if twice:
        return MISTAKES.padded(twice=twice[0])
    return MISTAKES.cut_off(lost=lost[0]) if lost else None


def balance(case: Case) -> Finding | None:
    for step, shares in enumerate(zip(*case.plan, strict=True)):
        sizes = [len(share) for share in shares]
        if max(sizes) - min(sizes) > 1:
            return MISTAKES.unbalanced(step=step, sizes=sizes)
    return None


def batches_of_one_rank(case: Case) -> Finding | None:
    """Each step's shares together: as many as they must be, and those of a single rank."""
    for step, shares in enumerate(zip(*case.plan, strict=True)):
        together = [i for share in shares for i in share]
        right = min(case.batch_size, case.size - step * case.batch_size)
        if len(together) != right:
            return evidence(
                f"step {step} has {len(together)} indices where {right} are right: global batch "
                "i is the i-th batch_size indices of the shuffle, and the last what is left"
            )
        alone = set(case.alone[0][step])
        if extra := [i for i in together if i not in alone]:
            return MISTAKES.other_batches(step=step, extra=extra[0])
    return None


def shuffles(orders: dict[int, list[int]], batch_size: int) -> Finding | None:
    """Whether `orders[epoch]`, one rank's indices in their order, are shuffled anew."""
    batches = {epoch: _batches(order, batch_size) for epoch, order in orders.items()}
    in_order = sorted(next(iter(orders.values())))
    if any(order in (in_order, in_order[::-1]) for order in orders.values()):
        return MISTAKES.not_shuffled()
    if batches[0] <= _batches(in_order, batch_size):
        return MISTAKES.shuffled_inside()
    for one, order in orders.items():
        for other, another in orders.items():
            if one < other and order == another:
                return MISTAKES.same_shuffle(one=one, other=other)
            if one < other and batches[one] == batches[other]:
                return MISTAKES.same_batches(one=one, other=other)
            if one < other and len(_neighbours(order) & _neighbours(another)) > len(order) / 2:
                return MISTAKES.rotated(one=one, other=other)
    return None


def _neighbours(order: list[int]) -> set[tuple[int, int]]:
    return set(itertools.pairwise(order))


def _batches(order: list[int], batch_size: int) -> set[frozenset[int]]:
    starts = range(0, len(order), batch_size)
    return {frozenset(order[start : start + batch_size]) for start in starts}
