"""Exercise `sum_tied`."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.checks.pipeline_parallel import _messages
from parlab.ledger.calls import RECEIVES, SENDS

SECONDS = 15.0

MISTAKES = Mistakes(
    not_summed=(
        "the gradient of this copy is still its own part. Add the other copy's part on both ranks, "
        "or the two copies drift apart"
    ),
    averaged="the gradient is the mean of the two parts. Sum them: both places use the same weight",
    both_send_first=(
        "both ranks wait until the other one receives. Send with `dist.isend`, which returns at "
        "once, and wait for its handle after the receive"
    ),
    whole_group=(
        "{op} waits for all ranks of `group`, but not all of them call it. Exchange messages "
        "between the two ranks with a copy"
    ),
    none_left_out=(
        "rank {rank} has no gradient and returns, so the other rank waits for it. If `.grad` is "
        "None, send zeros"
    ),
    next_call=(
        "it receives from any rank. The message of another call, for another weight, may arrive "
        "first: receive from the other rank, with `group_src`"
    ),
    to_itself=_messages.MISTAKES.texts["to_itself"],
)


@check_of(MISTAKES)
def sum_tied(check: Check) -> str:
    """Check two copies on any ranks, one without a gradient, a single copy, and two weights."""
    for trial in check.trials():
        n, pick = trial.size, trial.draw.randrange
        ends = [(0, n - 1, None), (n - 1, 0, None), (pick(n), pick(n), None)]
        ends.append((n - 1, n - 1, n - 1))
        if n > 1:
            ends += [(0, n - 1, 0), (0, n - 1, n - 1)]
        for first, last, empty in ends:
            name = f"copies on {first} and {last}" if first != last else f"one copy, on {last}"
            name += "" if empty is None else f", no gradient on {empty}"
            for _ in trial.cases({name: None}):
                _one_weight(trial, first, last, empty)
        if n > 2:
            early, late, both = trial.draw.sample(range(n), 3)
            _two_weights(trial, [(late, both), (early, both)], both)
            _two_weights(trial, [(both, late), (both, early)], both)
    return (
        "both copies have the sum, the same numbers, by one message each way; nobody else takes "
        f"part, on 1 to {check.world_size} ranks"
    )


def _normal(trial: Trial) -> Callable[..., Tensor]:
    """Return a function that draws normal numbers, the same on all ranks."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    return partial(torch.randn, generator=generator, dtype=torch.float64)


def _one_weight(trial: Trial, first: int, last: int, empty: int | None) -> None:
    shape, normal = (trial.draw.randrange(2, 6), trial.draw.randrange(2, 6)), _normal(trial)
    start = normal(shape)
    parts = {rank: normal(shape) for rank in dict.fromkeys((first, last))}

    def run() -> tuple[Tensor | None, Tensor] | None:
        weight = None
        if trial.rank in parts:
            weight = nn.Parameter(start.clone())
            weight.grad = None if trial.rank == empty else parts[trial.rank].clone()
        trial.check.function(weight, first, last, trial.group)
        return None if weight is None else (weight.grad, weight.detach())

    copy = trial.run_function(run, seconds=SECONDS, explain=partial(_waiting, trial, empty))
    gradients = [one[0] for one in trial.gather(copy) if one is not None]
    if empty is not None:
        parts[empty] = torch.zeros_like(start)
    trial.require(
        lambda: _takes_part(trial, first, last),
        lambda: (
            observed("the weight itself has changed. Change only its gradient")
            if copy is not None and not same(copy[1], start)
            else None
        ),
        lambda: None if copy is None else _is_sum(trial.rank, copy[0], gradients, parts, empty),
        lambda: _sends_once(trial, start.nbytes),
    )


def _two_weights(trial: Trial, ends: list[tuple[int, int]], both: int) -> None:
    """Sum two weights, one after the other. Rank `both` has a copy of each."""
    normal = _normal(trial)
    parts = [{rank: normal(3, 4) for rank in pair} for pair in ends]

    def run() -> list[Tensor | None]:
        gradients = []
        for pair, part in zip(ends, parts, strict=True):
            weight = None
            if trial.rank in pair:
                weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
                weight.grad = part[trial.rank].clone()
            trial.check.function(weight, *pair, trial.group)
            gradients.append(None if weight is None else weight.grad)
        return gradients

    for _ in trial.cases({f"copies on {ends[0]}, then others on {ends[1]}": None}):
        gradients = trial.run_function(run, seconds=SECONDS)
        trial.require(
            lambda: _names_source(trial, both, ends),
            *(
                lambda n=n: (
                    equal(gradients[n], sum(parts[n].values()), "`weight.grad`", TOLERANCE)
                    if trial.rank in parts[n]
                    else None
                )
                for n in range(2)
            ),
        )


def _names_source(trial: Trial, both: int, ends: list[tuple[int, int]]) -> Finding | None:
    """Require that the tag of a receive from any rank distinguishes the two messages."""
    others = {rank for pair in ends for rank in pair} - {both}
    tags = [{one.tag for one in trial.sends(rank) if one.to == both} for rank in others]
    for call in trial.receives(both):
        if call.source is None and all(call.tag in of_rank for of_rank in tags):
            return MISTAKES.next_call()
    return None


def _waiting(trial: Trial, empty: int | None, endings: _messages.Endings) -> Finding:
    """Explain why a copy waits forever. Collective over the lab."""
    ops = [{call.op for call in calls} for calls in trial.gather(trial.ledger.calls)]
    library = set().union(*ops) - set.intersection(*ops) - {*SENDS, *RECEIVES}
    stuck = [ended for ended in endings.values() if ended.kind == "stuck"]
    found = None
    if stuck and library:
        found = MISTAKES.whole_group(op=min(library))
    elif len(stuck) == 1 and empty is not None and endings[empty].kind == "returned":
        found = MISTAKES.none_left_out(rank=empty)
    elif len(stuck) == 2 and all(".send(" in ended.line for ended in stuck):
        found = MISTAKES.both_send_first()
    return _messages.explain(trial, endings, "", found)


def _takes_part(trial: Trial, first: int, last: int) -> Finding | None:
    calls = trial.calls[trial.rank]
    if calls and first == last:
        return observed(f"it calls {calls[0].op}, but there is one copy, and nothing to do")
    if calls and trial.rank not in (first, last):
        return observed(
            f"this rank has no copy, but it calls {calls[0].op}. Only the ranks `first` and `last` "
            "exchange messages"
        )
    return _messages.to_itself(trial)


def _is_sum(
    rank: int,
    gradient: Tensor | None,
    everyone: list[Tensor | None],
    parts: dict[int, Tensor],
    empty: int | None,
) -> Finding | None:
    if rank == empty and len(parts) == 1:
        text = "`.grad` was None and is not. There is one copy, and nothing to do"
        return None if gradient is None else observed(text)
    if gradient is None:
        return COMMON.wrong_type(name="`weight.grad`", got="None", right="a torch.Tensor")
    right = sum(parts.values())
    wrong = {"not_summed": parts[rank], "averaged": right / 2}
    if found := explained(gradient, right, wrong, MISTAKES, "`weight.grad`", TOLERANCE):
        return found
    # A sum in another order differs in the last digit, and so would the two weights.
    found = (
        equal(one, gradient, "the other copy's gradient") for one in everyone if one is not None
    )
    return next(filter(None, found), None)


def _sends_once(trial: Trial, size: int) -> Finding | None:
    got = trial.bytes_sent(trial.rank)
    if got <= size:
        return None
    return observed(f"it sends {got} bytes, expected {size}: one message with the gradient")
