"""Exercise `ring_attention`."""

import functools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from parlab.checks.all_to_all import _ring
from parlab.checks.all_to_all._ring import Case, Run, attention
from parlab.checks.base.call_outcome import ending
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.messages import only_messages
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.base.watchdog import Ended
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS

SECONDS = 10.0

MISTAKES = Mistakes(
    wrong_mask=(
        "the mask is missing, or it has wrong positions. A key is visible if its position in the "
        "whole sequence is not larger. In step s, rank r has the keys of rank (r - s) mod N, whose "
        "positions are in that row of `positions`"
    ),
    not_merged=(
        "the results of the blocks are added or averaged. Blocks with a larger sum of exponentials "
        "count more: use `merge`"
    ),
    wrong_neighbor=(
        "it {does} rank {got}, expected rank {right}. `group_dst` and `group_src` are "
        "numbers in the group, while `dst` and `src` are numbers in the whole job"
    ),
    sends_more=(
        "the {which} pass sends {got} messages with {bytes:,} bytes, expected at most {right} with "
        "{size:,} bytes each. Send keys and values, or their gradients, as one tensor, and none "
        "after the last step, because no rank needs them then"
    ),
    no_overlap=(
        "in step {step} of the {which} pass, {what} when `{function}` is called, so that message "
        "does not travel while the block is computed. Start to send and receive, compute, and then "
        "wait"
    ),
    hidden_block=(
        "`{function}` is called for the keys of rank {owner}, none of which this rank's queries "
        "see. Only pass such a block on"
    ),
    not_home=(
        "it is the gradient of another rank's: after the last step, gradients still have to travel "
        "one step further to their owner"
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


@check_of(MISTAKES)
def ring_attention(check: Check) -> str:
    """Check values, messages, overlap, and memory, with tokens in several orders."""
    _ring.import_all()
    for trial in check.trials():
        for name, make in trial.cases(_ring.LAYOUTS):
            _one_case(trial, _ring.drawn(trial, make, name))
        _refusals(trial)
    return (
        "output and gradients are those of the whole sequence, in any order of tokens; each "
        "message travels while a block is computed; hidden blocks are not computed; on 1 to "
        f"{check.world_size} ranks"
    )


def _one_case(trial: Trial, case: Case) -> None:
    passes, waiting = partial(_ring.passes, trial, case), partial(_waiting, trial)
    run = trial.run_function(passes, seconds=SECONDS, explain=waiting)
    ranks, own = trial.size, trial.rank
    trial.require(
        lambda: only_messages(trial),
        *(
            lambda name=name, x=x, before=before: unchanged(f"`{name}`", x, before)
            for name, (x, before) in (run.arguments if run else {}).items()
        ),
        lambda: _output(case, run, own),
        *(partial(_gradient, case, run, own, index) for index in range(3)),
        lambda: _blocks(case, run, "forward", own),
        lambda: _blocks(case, run, "backward", own),
        lambda: _neighbors(own, ranks, trial.calls[own]),
        lambda: _messages(run, "forward", ranks - 1, ranks - 1, case.block_bytes),
        lambda: _messages(run, "backward", 0, (2 * ranks - 1) * (ranks > 1), case.block_bytes),
        lambda: _memory(case, run),
        lambda: _overlap(run, "forward", ranks),
        lambda: _overlap(run, "backward", ranks),
    )


def _output(case: Case, run: Run, own: int) -> Finding | None:
    right = attention(case, own, case.mask(own))
    return explained(run.out, right, _wrong(case, own), MISTAKES, tolerance=case.tolerance)


def _wrong(case: Case, own: int) -> Iterator[tuple[str, Tensor]]:
    """Yield what mistakes compute."""
    ranks, length, right = case.ranks, case.length, case.mask(own)
    owners = torch.arange(ranks).repeat_interleave(length)
    if case.positions is not None:
        yield "wrong_mask", attention(case, own, torch.ones_like(right))
        local = torch.ones(length, length).tril().bool().repeat(1, ranks)
        yield "wrong_mask", attention(case, own, local)
        other = [case.visible(own, (2 * own - owner) % ranks) for owner in range(ranks)]
        yield "wrong_mask", attention(case, own, torch.cat(other, 1))
    blocks = (right & (owners == (own - step) % ranks) for step in range(ranks))
    outs = [attention(case, own, block).nan_to_num() for block in blocks if block.any()]
    yield "not_merged", functools.reduce(lambda one, other: (one + other) / 2, outs)
    yield "not_merged", sum(outs)
    yield "not_merged", sum(outs) / len(outs)


def _gradient(case: Case, run: Run, own: int, index: int) -> Finding | None:
    of_all, letter = [gradients[index] for gradients in case.gradients], "qkv"[index]
    others = (of_all[own - 1], of_all[(own + 1) % case.ranks]) if index else ()
    return explained(
        run.gradients[letter],
        of_all[own],
        (("not_home", other) for other in others),
        MISTAKES,
        f"the gradient of {letter}",
        case.tolerance,
        with_name=True,
    )


def _blocks(case: Case, run: Run, which: str, own: int) -> Finding | None:
    """Require one call for each block that has something visible."""
    function, steps = _ring.FUNCTIONS[which], [block.step for block in run.blocks[which]]
    if not steps:
        return observed(f"`{function}` is never called. Compute each block with this argument")
    if None in steps:
        return observed(f"`{function}` is called with keys and values of no rank")
    owners = [(own - step) % case.ranks for step in steps]
    seen = [rank for rank in range(case.ranks) if case.visible(own, rank).any()]
    for owner in owners:
        if owner not in seen:
            return MISTAKES.hidden_block(function=function, owner=owner)
    if sorted(owners) != seen:
        return observed(
            f"`{function}` is called for the keys of ranks {sorted(owners)}, expected {seen}"
        )
    return None


def _neighbors(rank: int, ranks: int, calls: list[Call]) -> Finding | None:
    for call in calls:
        for ops, does, right in (
            (SENDS, "sends to", (rank + 1) % ranks),
            (RECEIVES, "receives from", (rank - 1) % ranks),
        ):
            if call.op in ops and call.peer != right:
                return MISTAKES.wrong_neighbor(does=does, got=call.peer, right=right)
    return None


def _waiting(trial: Trial, endings: dict[int, Ended]) -> Finding | None:
    """Explain why ranks wait forever. Collective over the lab."""
    own = _neighbors(trial.rank, trial.size, trial.ledger.calls) if trial.takes_part else None
    found = [(rank, one) for rank, one in enumerate(trial.gather(own)) if one]
    outcome = ending(endings)
    if not found or outcome is None:
        return None
    rank, one = found[0]
    return Finding(f"rank {rank}: {one.text}\n{outcome.text}", one.mistake)


def _messages(run: Run, which: str, least: int, most: int, size: int) -> Finding | None:
    """Require that a pass sends so many messages, and so many bytes."""
    count, total = len(run.sent[which]), sum(run.sent[which])
    if count and not most:
        return observed(f"the {which} pass sends something, but there is only one rank")
    if count > most or total > most * size:
        return MISTAKES.sends_more(which=which, got=count, bytes=total, right=most, size=size)
    if count < least:
        return observed(f"the {which} pass sends {count} messages, expected at least {least}")
    return None


def _overlap(run: Run, which: str, ranks: int) -> Finding | None:
    """Require that the message for the next step is under way when a block is computed."""
    for block in run.blocks[which]:
        what, step = "", block.step
        if step == ranks - 1:
            continue
        if block.sends <= step:
            what = "nothing is being sent"
        elif block.receives <= step:
            what = "no receive has started"
        elif block.waited > (step if which == "forward" else 2 * step):
            what = "the next block was already waited for"
        if what:
            function = _ring.FUNCTIONS[which]
            return MISTAKES.no_overlap(which=which, step=step, what=what, function=function)
    return None


def _memory(case: Case, run: Run) -> Finding | None:
    for which, blocks in run.blocks.items():
        for block in blocks:
            if block.alive > 1:
                return MISTAKES.hoards(which=which, step=block.step, got=block.alive)
    if run.kept > case.kept_bytes:
        return MISTAKES.keeps_more(got=run.kept, right=case.kept_bytes)
    return None


def _refusals(trial: Trial) -> None:
    n, length = trial.size, 4
    calls = {}
    for shape in ((n + 1, length), (n, length + 2), (n * length,)):
        positions = torch.arange(torch.Size(shape).numel()).view(shape)
        what = f"positions of shape {shape}, not {(n, length)}"
        calls[what] = (*torch.ones(3, 1, length, 1, 2), positions, trial.group)
    require_refusals(trial, calls, "positions", seconds=SECONDS)
