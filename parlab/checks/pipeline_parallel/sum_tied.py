"""Exercise `sum_tied`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.endings import ending
from parlab.checks.groups import LateWork
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.pipeline_parallel.explained import waited_in
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.ledger.calls import RECEIVES, SENDS

SECONDS = 15.0
BEGUN = 9999  # the tag of the check's own messages; far from any that a weight needs

MISTAKES = Mistakes(
    one_end_only=(
        "the gradient is the sum on rank {right} alone: rank {rank} still has its own part, and "
        "the two copies of the weight drift apart"
    ),
    not_summed="the gradient on rank {rank} is its own part: the other copy's is to be added",
    replaced="the gradient on rank {rank} is the other copy's: the two are to be added",
    doubled="the gradient on rank {rank} is twice what it was: the other's is to be added",
    averaged=(
        "the gradient is the mean of the two: the weight is used in two places, and its gradient "
        "is the sum of what both say"
    ),
    weights_changed=(
        "the weight itself has changed: the copies are equal, and stay so where their gradients are"
    ),
    both_send_first=(
        "both ranks wait until the other receives, and neither comes to it: `dist.isend` returns "
        "at once, and what it returns is waited for after the receive"
    ),
    whole_group=(
        "{op} waits for all ranks of `group`, and only those with a copy call it: the two exchange "
        "a message, each with the other"
    ),
    none_left_out=(
        "rank {rank} has no gradient and goes on, and the other end waits for it: a copy whose "
        "`.grad` is None counts as zeros, and these are sent"
    ),
    others_take_part=(
        "rank {rank} takes part, which has no copy: it calls {op}. Two ranks exchange one message "
        "each, and all others go on"
    ),
    to_itself=(
        "rank {rank} sends to itself. The other end is `group_dst={other}`: `dst` counts the ranks "
        "of the whole job"
    ),
    next_call=(
        "rank {rank} has added the gradient of rank {other}, which is in its next call already: "
        "receive from the other end, `group_src=…`, not from whoever comes first"
    ),
    sent_more="rank {rank} sends {got} bytes where {right} are enough: its gradient, once",
)


@dataclass
class Seen:
    """A copy of the weight after the call."""

    gradient: Tensor | None
    weight: Tensor


@check_of(MISTAKES)
def sum_tied(check: Check) -> str:
    """Check both copies, with ends anywhere; one without a gradient; one alone; two weights."""
    for trial in check.trials():
        n, pick = trial.size, trial.draw.randrange
        ends = [(0, n - 1), (n - 1, 0), (pick(n), pick(n))]
        for number, (first, last) in enumerate(ends):
            trial.situation = f"{n} ranks, copies on {first} and {last}"
            _one(trial, first, last, None)
            if number == 0 and n > 1:
                for empty in (first, last):
                    trial.situation = f"{n} ranks, rank {empty} without a gradient"
                    _one(trial, first, last, empty)
        trial.situation = f"{n} ranks, one copy, without a gradient"
        _one(trial, n - 1, n - 1, n - 1)
        if n > 2:
            early, late, both = trial.draw.sample(range(n), 3)
            _in_a_row(trial, [(late, both), (early, both)], early)
            _in_a_row(trial, [(both, late), (both, early)], early)
    return (
        "both copies have the sum, the same numbers, by one message each way; nobody else takes "
        f"part, on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, first: int, last: int, empty: int | None) -> None:
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    shape = (trial.draw.randrange(2, 6), trial.draw.randrange(2, 6))
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    parts = {
        rank: torch.randn(shape, generator=generator, dtype=torch.float64)
        for rank in dict.fromkeys((first, last))
    }

    def run() -> Seen | None:
        weight = None
        if trial.rank in parts:
            weight = nn.Parameter(start.clone())
            if trial.rank != empty:
                weight.grad = parts[trial.rank].clone()
        trial.check.function(weight, first, last, trial.group)
        if weight is None:
            return None
        return Seen(weight.grad, weight.detach())

    seen = trial.run_function(run, seconds=SECONDS, explain=partial(waiting, trial, empty))
    everyone = trial.gather(seen)
    if empty is not None:
        parts[empty] = torch.zeros_like(start)
    right = sum(parts.values())
    trial.require(
        lambda: takes_part(trial, first, last),
        lambda: to_itself(trial, first + last - trial.rank),
        lambda: (
            MISTAKES.weights_changed()
            if seen is not None and not same(seen.weight, start)
            else None
        ),
        lambda: None if seen is None else is_sum(trial, everyone, parts, right, empty),
        lambda: sent(trial, first, last, start.nbytes),
    )


def _in_a_row(trial: Trial, ends: list[tuple[int, int]], early: int) -> None:
    """Two weights, one call after the other; rank `early`, of the second, comes first of all.

    The rank of both calls begins the first when the message of `early` is there, if it has sent
    one; the third when a receive of that rank would have taken it. Whoever takes the first message
    that comes takes the wrong one then.
    """
    trial.situation = f"{trial.size} ranks, copies on {ends[0]}, then other ones on {ends[1]}"
    (both,) = set(ends[0]) & set(ends[1])
    (late,) = set(ends[0]) - {both}
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    parts = [
        {rank: torch.randn(3, 4, generator=generator, dtype=torch.float64) for rank in pair}
        for pair in ends
    ]

    def run() -> list[Tensor | None]:
        group, got = trial.group, []
        if trial.rank == both and heard(group, early):
            group.comm.Probe(early)
        if trial.rank == late:
            heard(group, both)
        for number, (pair, own) in enumerate(zip(ends, parts, strict=True)):
            weight, begins = None, nullcontext()
            if trial.rank in own:
                weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
                weight.grad = own[trial.rank].clone()
            if trial.rank == both and number == 0:
                begins = told_when_begun(group, "recv", late)
            if trial.rank == early and number == 1:
                begins = told_when_begun(group, "send", both)
            with begins:
                trial.check.function(weight, *pair, group)
            got.append(None if weight is None else weight.grad)
        return got

    got = trial.run_function(run, seconds=SECONDS)
    trial.require(lambda: each_its_own(trial.rank, got, parts))


def heard(group: Any, rank: int) -> bool:
    """Wait until `rank` tells that it has begun: whether with the operation that it was to tell."""
    told = bytearray(1)
    group.comm.Recv(told, rank, BEGUN)
    return bool(told[0])


@contextmanager
def told_when_begun(group: Any, operation: str, rank: int) -> Iterator[None]:
    """Tell `rank`, once: this rank has begun an `operation`, or waits for another, or is done."""
    told: list[Any] = []
    start, note = group.start, group.note

    def tell(begun: bool) -> None:
        if not told:
            told.append(group.comm.Isend(bytearray([begun]), rank, BEGUN))

    def started(
        name: str, arguments: tuple, do: Callable, arrived: Callable[[], bool] = lambda: True
    ) -> LateWork:
        def asked() -> bool:
            tell(False)
            return arrived()

        work = start(name, arguments, do, asked)
        if name == operation:
            tell(True)
        return work

    def noted(kind: str, what: Any = None) -> None:
        if kind == "wait":
            tell(False)
        note(kind, what)

    group.start, group.note = started, noted
    try:
        yield
        tell(False)
        told[0].Wait()
    finally:
        del group.start, group.note  # the class's are there again


def each_its_own(
    rank: int, got: list[Tensor | None], parts: list[dict[int, Tensor]]
) -> Finding | None:
    for number, (mine, own) in enumerate(zip(got, parts, strict=True)):
        if rank not in own or same(mine, sum(own.values()), TOLERANCE):
            continue
        for other, theirs in parts[1 - number].items():
            if same(mine, own[rank] + theirs, TOLERANCE):
                return MISTAKES.next_call(rank=rank, other=other)
        return equal(mine, sum(own.values()), "`weight.grad`", TOLERANCE)
    return None


def waiting(trial: Trial, empty: int | None, endings: dict[int, Ended]) -> Finding | None:
    """Why a copy waits for ever, with the lines; collective over the lab."""
    waits = trial.gather(waited_in(trial.ledger.calls))
    stuck = [rank for rank, ended in endings.items() if ended.kind == "stuck"]
    ops = {waits[rank].op for rank in stuck if waits[rank] is not None}
    told, found = ending(endings), None
    if len(stuck) == 1 and empty is not None and endings[empty].kind == "returned":
        found = MISTAKES.none_left_out(rank=empty)
    elif len(stuck) == 2 and ops and ops <= set(SENDS):
        found = MISTAKES.both_send_first()
    elif ops and not ops & {*SENDS, *RECEIVES}:
        found = MISTAKES.whole_group(op=ops.pop())
    return found and told and replace(found, text=f"{found.text}\n{told.text}")


def takes_part(trial: Trial, first: int, last: int) -> Finding | None:
    calls = trial.calls[trial.rank]
    if not calls:
        return None
    if first == last:
        return evidence(f"there is one copy, and nothing to do: it calls {calls[0].op}")
    if trial.rank not in (first, last):
        return MISTAKES.others_take_part(rank=trial.rank, op=calls[0].op)
    return None


def to_itself(trial: Trial, other: int) -> Finding | None:
    if any(call.to == trial.rank for call in trial.sends(trial.rank)):
        return MISTAKES.to_itself(rank=trial.rank, other=other)
    return None


def is_sum(
    trial: Trial,
    everyone: list[Seen | None],
    parts: dict[int, Tensor],
    right: Tensor,
    empty: int | None,
) -> Finding | None:
    rank = trial.rank
    got = everyone[rank].gradient
    if rank == empty and len(parts) == 1:
        if got is None:
            return None
        return evidence("there is one copy, and nothing to do: its `.grad` was None, and is not")
    if got is None:
        return COMMON.wrong_type(name="`weight.grad`", got="None", right="a torch.Tensor")
    if same(got, right, TOLERANCE):
        others = [one.gradient for one in everyone if one is not None and one.gradient is not None]
        # Sums in another order differ in the last digit, and the copies with them.
        return next((f for o in others if (f := equal(o, got, "the other copy's gradient"))), None)
    if len(parts) == 2:
        other = next(r for r in parts if r != rank)
        theirs = everyone[other].gradient
        if same(got, parts[rank], TOLERANCE):
            if theirs is not None and same(theirs, right, TOLERANCE):
                return MISTAKES.one_end_only(right=other, rank=rank)
            return MISTAKES.not_summed(rank=rank)
        if same(got, right / 2, TOLERANCE):
            return MISTAKES.averaged()
        if same(got, parts[other], TOLERANCE):
            return MISTAKES.replaced(rank=rank)
    if same(got, 2 * parts[rank], TOLERANCE):
        return MISTAKES.doubled(rank=rank)
    return equal(got, right, "`weight.grad`", TOLERANCE)


def sent(trial: Trial, first: int, last: int, size: int) -> Finding | None:
    right = size if trial.rank in (first, last) and first != last else 0
    got = trial.bytes_sent(trial.rank)
    return MISTAKES.sent_more(rank=trial.rank, got=got, right=right) if got > right else None
