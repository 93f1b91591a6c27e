"""Exercise `sharded_sampler`: every index once, the same global batches on any number of ranks."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from parlab.checks.base import Check, fresh_seed, gather
from parlab.checks.data_parallel.common import on

Sampler = Callable[[int, int, int, int, int], list[torch.Tensor]]
Plan = list[list[list[int]]]  # [rank][step] → indices


@dataclass(frozen=True)
class Case:
    """A data set to share, and how the sampler shares it: `alone` on one rank, `plan` on N."""

    size: int
    batch_size: int
    alone: Plan
    plan: Plan

    def __str__(self) -> str:
        return f"size {self.size}, batch_size {self.batch_size}, {on(len(self.plan))}"


def sharded_sampler(function: Sampler) -> None:
    """Check a sampler for 1, 2, … ranks and more, on sizes that divide by nothing."""
    check = Check("sharded_sampler")
    draw = random.Random(fresh_seed())
    worlds = sorted({*range(1, check.world_size + 1), 3, 5})
    cases = []
    for world_size in worlds:
        for size, batch_size in _sizes(world_size, draw):
            arguments = (check, function, size, batch_size, 1)
            plans = _plan(*arguments, 1), _plan(*arguments, world_size)
            cases.append(Case(size, batch_size, *plans))
    # One question after the other to all cases: a mistake that is plain in one may look like
    # another mistake in the next.
    for judge in (_equal_steps, _all_steps, _coverage, _balance, _global_batches):
        for case in cases:
            if problem := judge(case):
                check.fail(f"{case}: {problem}")
    _shuffles(check, function)
    check.passed(
        f"every index once, on {worlds[0]} to {worlds[-1]} ranks; a new shuffle each epoch"
    )


def _sizes(world_size: int, draw: random.Random) -> list[tuple[int, int]]:
    """Sizes of the data set and of the global batch. Tails of 1 leave most ranks nothing."""
    batch_size = world_size * draw.randint(2, 4) + draw.randint(0, world_size - 1)
    whole = batch_size * draw.randint(2, 4)
    return [
        (8 * world_size + 1, 2 * world_size),
        (whole + draw.randint(1, batch_size - 1), batch_size),
        (whole + 1, batch_size),
    ]


def _plan(
    check: Check, function: Sampler, size: int, batch_size: int, epoch: int, world_size: int
) -> Plan:
    """What the sampler says for each rank; fails where the processes do not say the same."""

    def ask() -> list[list[torch.Tensor]]:
        return [function(size, batch_size, epoch, rank, world_size) for rank in range(world_size)]

    with check.communicator() as comm:
        before = torch.get_rng_state()
        shares = check.call(ask, comm=comm)
        touched = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
    check.agree(_form(shares))
    plan = [[step.tolist() for step in rank] for rank in shares]
    everywhere = gather(plan)
    if any(other != everywhere[0] for other in everywhere):
        check.fail(
            "the processes shuffle differently: for the same arguments, two of them give other "
            "indices. Nobody sends the shuffle, so it must come from a generator that all ranks "
            "seed alike: torch.Generator().manual_seed(…)"
        )
    if touched:
        check.fail(
            "it moves or seeds torch's global generator, on which dropout and initialisation "
            "depend: use a torch.Generator() of its own"
        )
    return plan


def _form(shares: object) -> str | None:
    for share in shares if isinstance(shares, list) else []:
        if share is None:
            return "it returns None: is a `return` missing?"
        if not isinstance(share, list):
            return f"it returns a {type(share).__name__}, not a list with one tensor a step"
        for step in share:
            if not isinstance(step, torch.Tensor) or step.dtype != torch.int64 or step.dim() != 1:
                kind = getattr(step, "dtype", type(step).__name__)
                return f"each step's share must be a one-dimensional int64 tensor, not {kind}"
    return None


def _equal_steps(case: Case) -> str | None:
    steps = [len(share) for share in case.plan]
    if len(set(steps)) == 1:
        return None
    few, many = steps.index(min(steps)), steps.index(max(steps))
    return (
        f"rank {many} makes {max(steps)} steps and rank {few} only {min(steps)}: rank {many} "
        "would wait for ever in its last all-reduce. An empty share is a step too"
    )


def _all_steps(case: Case) -> str | None:
    steps, right = len(case.plan[0]), -(-case.size // case.batch_size)
    if steps == right:
        return None
    if steps == case.size // case.batch_size:
        return f"{steps} steps where {right} are right: the last, smaller batch is dropped"
    return (
        f"{steps} steps where {right} are right: batch_size is that of the global batch, all "
        "ranks together"
    )


def _coverage(case: Case) -> str | None:
    """Nothing twice, nothing lost."""
    plan, size = case.plan, case.size
    if len(plan) > 1 and plan[0] == plan[1]:
        return (
            "ranks 0 and 1 train on the same shard: their gradients are equal, and the other "
            "ranks' work is wasted. Each rank needs its own part of the batch"
        )
    counts = Counter(i for share in plan for step in share for i in step)
    beyond = [i for i in counts if not 0 <= i < size]
    lost = [i for i in range(size) if i not in counts]
    twice = [i for i, count in counts.items() if count > 1]
    if beyond:
        return f"index {beyond[0]} is not in the data set"
    if lost and twice:
        return (
            f"index {twice[0]} is in two shares and index {lost[0]} in none: the ranks do not "
            "cut one and the same shuffle. The seed must not depend on the rank"
        )
    if twice:
        return (
            f"index {twice[0]} comes twice: the tail is padded, so those samples weigh double. "
            "Uneven shares are fine"
        )
    if lost:
        return f"index {lost[0]} is in no share: the uneven tail is cut off"
    return None


def _balance(case: Case) -> str | None:
    for step, shares in enumerate(zip(*case.plan, strict=True)):
        sizes = [len(share) for share in shares]
        if max(sizes) - min(sizes) > 1:
            return (
                f"step {step} gives the ranks {sizes} samples: all wait for the one with most. "
                "Shares may differ by one"
            )
    return None


def _global_batches(case: Case) -> str | None:
    for step, shares in enumerate(zip(*case.plan, strict=True)):
        together = sorted(i for share in shares for i in share)
        right = sorted(case.alone[0][step])
        if together != right:
            extra = next(i for i in together if i not in right)
            return (
                f"step {step} trains on other samples than a single rank does (on index {extra}, "
                "for one), so the learning curves cannot be the same. Cut each global batch into "
                "shares, not the whole data set"
            )
    return None


def _shuffles(check: Check, function: Sampler) -> None:
    size, batch_size = 101, 8
    epochs = [
        [i for step in _plan(check, function, size, batch_size, epoch, 1)[0] for i in step]
        for epoch in range(4)
    ]
    if any(epoch == list(range(size)) for epoch in epochs):
        check.fail("the indices come in the order of the data set: nothing is shuffled")
    for epoch, order in enumerate(epochs[1:], start=1):
        if order == epochs[0]:
            check.fail(
                f"epochs 0 and {epoch} have the same shuffle, so every epoch repeats the same "
                "batches: the seed must depend on `epoch`"
            )
