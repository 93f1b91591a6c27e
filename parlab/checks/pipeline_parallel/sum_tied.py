"""Exercise `sum_tied`."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.endings import ending
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended

SECONDS = 15.0

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
        "at once"
    ),
    none_left_out=(
        "rank {rank} has no gradient and goes on, and the other end waits for it: a copy whose "
        "`.grad` is None counts as zeros, and these are sent"
    ),
    others_take_part=(
        "rank {rank} takes part, which has no copy: it calls {op}. Two ranks exchange one message "
        "each, and all others go on"
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
    """Check both copies, with ends anywhere; a copy without a gradient; one copy alone."""
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

    seen = trial.run_function(run, seconds=SECONDS, explain=partial(waiting, empty))
    everyone = trial.gather(seen)
    if empty is not None:
        parts[empty] = torch.zeros_like(start)
    right = sum(parts.values())
    trial.require(
        lambda: takes_part(trial, first, last),
        lambda: (
            MISTAKES.weights_changed()
            if seen is not None and not same(seen.weight, start)
            else None
        ),
        lambda: None if seen is None else is_sum(trial, everyone, parts, right),
        lambda: sent(trial, first, last, start.nbytes),
    )


def waiting(empty: int | None, endings: dict[int, Ended]) -> Finding | None:
    stuck = [ended for ended in endings.values() if ended.kind == "stuck"]
    told = ending(endings)
    if told and len(stuck) == 1 and empty is not None and endings[empty].kind == "returned":
        return _with(MISTAKES.none_left_out(rank=empty), told)
    if len(stuck) != 2 or not all("send(" in e.line and "isend(" not in e.line for e in stuck):
        return None
    return _with(MISTAKES.both_send_first(), told)


def _with(found: Finding, told: Finding | None) -> Finding:
    """What was found, and on which lines ranks wait."""
    return Finding(f"{found.text}\n{told.text}" if told else found.text, found.mistake)


def takes_part(trial: Trial, first: int, last: int) -> Finding | None:
    calls = trial.calls[trial.rank]
    if not calls:
        return None
    if first == last:
        return evidence(f"there is one copy, and nothing to do: it calls {calls[0].op}")
    if trial.rank not in (first, last):
        return MISTAKES.others_take_part(rank=trial.rank, op=calls[0].op)
    return None


def is_sum(
    trial: Trial, everyone: list[Seen | None], parts: dict[int, Tensor], right: Tensor
) -> Finding | None:
    rank = trial.rank
    got = everyone[rank].gradient
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
