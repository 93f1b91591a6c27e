"""Exercise `ring_attention`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parlab.checks.all_to_all import _ring
from parlab.checks.all_to_all._attention import own_part, serial
from parlab.checks.all_to_all._ring import Block, Case
from parlab.checks.base.call_outcome import ending
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.messages import only_messages
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.base.watchdog import Ended
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.memory import LiveStorages

SECONDS = 10.0

MISTAKES = Mistakes(
    wrong_mask=(
        "`attend` gets a wrong mask. A key is visible if its position in the whole sequence is not "
        "larger. In step s, rank r has the keys of rank (r - s) mod N, whose positions are in that "
        "row of `positions`"
    ),
    wrong_neighbor=(
        "rank {rank} {does} rank {got}, expected rank {right}. Check the direction, and use "
        "`group_dst` and `group_src`: `dst` and `src` count the ranks of the whole job"
    ),
    sends_more=(
        "the {which} pass sends {got} messages with {bytes:,} bytes in total, expected at most "
        "{right} with {size:,} bytes each. Send keys and values as one tensor, but not after the "
        "last step. Send their gradients as another tensor"
    ),
    no_overlap=(
        "in step {step} of the {which} pass, {what} when `{function}` is called, so nothing "
        "travels during the computation. Start to send and receive, compute, and then wait"
    ),
    hidden_block=(
        "`{function}` is called for the keys of rank {owner}, none of which this rank's queries "
        "see. Only pass such a block on"
    ),
    not_home=(
        "it is the gradient of another rank's block: after the last step, gradients still have to "
        "travel one step further to their owner"
    ),
    keeps_more=(
        "{got} bytes are kept for the backward pass, expected at most {right}: keep only q, k, v, "
        "the output, and its lse"
    ),
    hoards=(
        "in step {step} of the {which} pass, {got} blocks of earlier steps are still in memory. "
        "Replace a block by the next one when its message has left"
    ),
)


def _consecutive(trial: Trial, length: int) -> Tensor:
    return torch.arange(trial.size * length).view(trial.size, length)


def _drawn(trial: Trial, length: int) -> Tensor:
    order = trial.draw.sample(range(trial.size * length), trial.size * length)
    return torch.tensor(order).view(trial.size, length)


CASES: dict[str, tuple[Callable[[Trial, int], Tensor | None], str, torch.dtype]] = {
    "consecutive tokens": (_consecutive, "contiguous", torch.float64),
    "no mask": (lambda trial, length: None, "expanded", torch.float64),
    "tokens in no order": (_drawn, "slices", torch.float64),
    "no mask, in float32": (lambda trial, length: None, "contiguous", torch.float32),
}


@check_of(MISTAKES)
def ring_attention(check: Check) -> str:
    """Check values, messages, overlap, and memory, with tokens in several orders."""
    for trial in check.trials():
        for _, (positions, layout, dtype) in trial.cases(CASES):
            length = trial.draw.randrange(16, 21)
            _case(trial, Case(trial, length, positions(trial, length), layout, dtype))
        n, length = trial.size, 4
        calls = {}
        for shape in ((n + 1, length), (n, length + 2), (n * length,)):
            positions = torch.arange(torch.Size(shape).numel()).view(shape)
            what = f"positions of shape {shape}, not {(n, length)}"
            calls[what] = (*torch.ones(3, 1, length, 1, 2), positions, trial.group)
        require_refusals(trial, calls, "positions", seconds=SECONDS)
    return (
        "output and gradients are those of the whole sequence, in any order of tokens; each "
        "message travels while a block is computed; hidden blocks are not computed; on 1 to "
        f"{check.world_size} ranks"
    )


def _case(trial: Trial, case: Case) -> None:
    q, k, v, gradient, positions = case.given.values()
    before, mask, ranks = [*own_part(trial, case.whole)], None, trial.size
    if positions is not None:
        before.append(case.positions)
        mask = case.positions.flatten() <= case.positions.flatten()[:, None]
    right, *gradients = serial(case.whole, mask)
    blocks: dict[str, list[Block]] = {"forward": [], "backward": []}
    watched = {name: _ring.watched(w, case, blocks[w]) for w, name in _ring.FUNCTIONS.items()}
    explain = partial(_waiting, trial)

    def forward() -> tuple[Any, int]:
        trial.group.take_events()
        with LiveStorages() as storages:
            # Views, because a leaf could not be changed in place.
            given = (*(x.view_as(x) for x in (q, k, v)), positions, trial.group)
            out = trial.check.function(*given, **watched)
            return out, storages.live

    def backward() -> None:
        trial.group.take_events()
        out.backward(gradient)

    def communicates(which: str, least: int, most: int) -> Iterator[Callable]:
        """Yield the requirements on the blocks and messages of a pass."""
        yield lambda: _blocks(case, which, blocks[which])
        yield lambda: _neighbors(trial.calls)
        yield lambda: _messages(trial, which, least, most, 2 * k.nbytes)
        yield lambda: _overlap(which, blocks[which])

    out, live = trial.run_function(forward, seconds=SECONDS, explain=explain) or (None, 0)
    kept = [
        partial(unchanged, f"`{name}`", case.given[name], x)
        for name, x in zip(case.given, before, strict=False)
    ]
    trial.require(
        lambda: only_messages(trial),
        *kept,
        lambda: _output(out, own_part(trial, right), case.tolerance, blocks["forward"]),
        lambda: _keeps(live, case.kept_bytes),
        *communicates("forward", ranks - 1, ranks - 1),
    )
    trial.run_function(backward, seconds=SECONDS, explain=explain)
    trial.require(
        lambda: only_messages(trial),
        *kept,
        *(partial(_gradient, case, *one) for one in zip("qkv", gradients, strict=True)),
        *communicates("backward", 0, (2 * ranks - 1) * (ranks > 1)),
    )


def _output(out: Any, right: Tensor, tolerance: float, blocks: list[Block]) -> Finding | None:
    found = equal(out, right, tolerance=tolerance)
    if found and any(block.wrong_mask for block in blocks):
        return MISTAKES.wrong_mask()
    return found


def _keeps(got: int, right: int) -> Finding | None:
    return MISTAKES.keeps_more(got=got, right=right) if got > right else None


def _gradient(case: Case, name: str, of_all: Tensor) -> Finding | None:
    parts, rank = of_all.chunk(case.trial.size, dim=1), case.trial.rank
    others = () if name == "q" else (parts[rank - 1], parts[(rank + 1) % len(parts)])
    return explained(
        case.given[name].grad,
        parts[rank],
        (("not_home", other) for other in others),
        MISTAKES,
        f"the gradient of {name}",
        case.tolerance,
        with_name=True,
    )


def _blocks(case: Case, which: str, blocks: list[Block]) -> Finding | None:
    """Require one call for each block with a visible key, and few blocks in memory."""
    function, owners = _ring.FUNCTIONS[which], [block.owner for block in blocks]
    if not owners:
        return observed(f"`{function}` is never called. Compute each block with this argument")
    if None in owners:
        return observed(f"`{function}` is called with keys and values of no rank")
    seen = [rank for rank in range(case.trial.size) if case.visible(rank).any()]
    for owner in owners:
        if owner not in seen:
            return MISTAKES.hidden_block(function=function, owner=owner)
    if sorted(owners) != seen:
        return observed(
            f"`{function}` is called for the keys of ranks {sorted(owners)}, expected {seen}"
        )
    for block in blocks:
        if block.alive > 1:
            return MISTAKES.hoards(which=which, step=block.step, got=block.alive)
    return None


def _neighbors(calls: list[list[Call]]) -> Finding | None:
    n = len(calls)
    for rank, of_rank in enumerate(calls):
        for call in of_rank:
            does, right = "sends to", (rank + 1) % n
            if call.op in RECEIVES:
                does, right = "receives from", (rank - 1) % n
            if call.op in (*SENDS, *RECEIVES) and call.peer != right:
                return MISTAKES.wrong_neighbor(rank=rank, does=does, got=call.peer, right=right)
    return None


def _waiting(trial: Trial, endings: dict[int, Ended]) -> Finding | None:
    """Explain why ranks wait forever. Collective over the lab."""
    found = _neighbors(trial.gather(trial.ledger.calls))
    return found and replace(found, text=f"{found.text}\n{ending(endings).text}")


def _messages(trial: Trial, which: str, least: int, most: int, size: int) -> Finding | None:
    """Require from `least` to `most` messages in a pass, and at most `most * size` bytes."""
    count, total = len(trial.sends(trial.rank)), trial.bytes_sent(trial.rank)
    if count > most or total > most * size:
        return MISTAKES.sends_more(which=which, got=count, bytes=total, right=most, size=size)
    if count < least:
        return observed(f"the {which} pass sends {count} messages, expected at least {least}")
    return None


def _overlap(which: str, blocks: list[Block]) -> Finding | None:
    """Require that the message for the next step is under way when a block is computed."""
    function = _ring.FUNCTIONS[which]
    for one in blocks:
        if one.idle:
            return MISTAKES.no_overlap(which=which, step=one.step, what=one.idle, function=function)
    return None
