"""Exercise `ring_attention`."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from parlab.checks.all_to_all import _ring
from parlab.checks.all_to_all._ring import Case, Run, attention, by_block
from parlab.checks.base.call_outcome import ending
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.messages import only_messages
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.base.watchdog import Ended
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS

SECONDS = 10.0

MISTAKES = Mistakes(
    no_mask="every query sees every key: a key is visible if its position is not larger",
    local_positions=(
        "the mask compares places within a block. Compare positions in the whole sequence, which "
        "are in `positions`"
    ),
    consecutive_assumed=(
        "the mask is right only if each rank has consecutive tokens. Which ones it has is in "
        "`positions`"
    ),
    wrong_owner=(
        "keys are masked with the positions of another rank: in step s, rank r has the keys of "
        "rank (r - s) mod N"
    ),
    own_block_only="it is the attention over this rank's own keys: other ranks' keys are missing",
    one_missing=(
        "the keys of the next rank are missing. They arrive last, after N - 1 messages, and have "
        "to be merged, too"
    ),
    not_merged=(
        "the results of the blocks are added or averaged. Blocks with a larger sum of exponentials "
        "count more: use `merge`"
    ),
    wrong_neighbor=(
        "it {does} rank {got}, expected rank {right}. `group_dst` and `group_src` are "
        "numbers in the group, while `dst` and `src` are numbers in the whole job"
    ),
    once_too_often=(
        "the {which} pass sends {got} messages, expected {right}: after the last step, nobody "
        "needs the keys and values any more"
    ),
    two_messages=(
        "the {which} pass sends {got} messages, expected {right}: send keys and values as one "
        "tensor, and their gradients, too"
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
    own_queries_only=(
        "it has only what this rank's own queries add. Queries of other ranks use these keys and "
        "values, too"
    ),
    block_lse=(
        "it is computed with the output and the lse of single blocks. `attend_backward` takes "
        "those of all blocks together"
    ),
    keeps_more=(
        "{got} bytes are kept for the backward pass, expected at most {right}: keep only q, k, v, "
        "the output, and its lse"
    ),
    hoards=(
        "in step {step} of the {which} pass, {got} blocks of earlier steps are still in memory. "
        "Replace a block by the next one when its message has left"
    ),
    not_refused="it accepts `positions` of shape {shape}, expected {right}: raise a ValueError",
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
        lambda: _gradients(case, run, own),
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
    ranks, length = case.ranks, case.length
    queries, keys = torch.arange(length)[:, None], torch.arange(ranks * length)
    owners, places = keys // length, keys % length
    right = case.mask(own)
    if case.positions is not None:
        yield "no_mask", attention(case, own, torch.ones_like(right))
        yield "local_positions", attention(case, own, places <= queries)
        yield (
            "local_positions",
            attention(case, own, (places <= queries) | (owners != own).expand(length, -1)),
        )
        earlier = (owners < own) | ((owners == own) & (places <= queries))
        yield "consecutive_assumed", attention(case, own, earlier)
        order = [(2 * own - owner) % ranks for owner in range(ranks)]
        other = case.positions[order].flatten() <= case.positions[own][:, None]
        if other.any(1).all():
            yield "wrong_owner", attention(case, own, other)
    only_own = right & (owners == own)
    yield "own_block_only", attention(case, own, only_own)
    yield "one_missing", attention(case, own, right & (owners != (own + 1) % ranks))
    outs = by_block(case, own)
    owners = [(own - step) % ranks for step in range(ranks)]
    in_order = [outs[owner] for owner in owners if case.visible(own, owner).any()]
    halved = in_order[0]
    for out in in_order[1:]:
        halved = (halved + out) / 2
    yield "not_merged", halved
    yield "not_merged", sum(outs)
    yield "not_merged", sum(outs) / ranks
    yield "not_merged", sum(outs) / len(in_order)


def _gradients(case: Case, run: Run, own: int) -> Finding | None:
    found = []
    right = case.gradients
    for index, name in enumerate("qkv"):
        title = f"the gradient of {name}"
        one = explained(
            run.gradients[name],
            right[own][index],
            _wrong_gradients(case, own, index, right),
            MISTAKES,
            title,
            case.tolerance,
        )
        if one is not None:
            found.append(Finding(f"{title}: {one.text}", one.mistake) if one.mistake else one)
    return next((one for one in found if one.mistake in MISTAKES.texts), next(iter(found), None))


def _wrong_gradients(
    case: Case, own: int, index: int, right: list[list[Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    if index:
        yield "not_home", right[(own + 1) % case.ranks][index]
        yield "not_home", right[own - 1][index]
        yield "own_queries_only", case.part_of_gradients(own, own)[index]
    yield "block_lse", case.gradients_of_blocks(own)[index]


def _blocks(case: Case, run: Run, which: str, own: int) -> Finding | None:
    """Require one call for each block that has something visible."""
    function, steps = _ring.FUNCTIONS[which], run.steps[which]
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
    sent = run.sent[which]
    got = f"{len(sent)} messages with {sum(sent):,} bytes"
    values = {"which": which, "got": len(sent), "right": most}
    if len(sent) > most and most and all(one == size for one in sent):
        return MISTAKES.once_too_often(**values)
    if len(sent) > most and sum(sent) <= most * size:
        return MISTAKES.two_messages(**values)
    if sent and not most:
        return observed(f"the {which} pass sends something, but there is only one rank")
    if not least <= len(sent) <= most or sum(sent) > most * size:
        return observed(f"the {which} pass sends {got}, expected {most} with {size:,} bytes each")
    return None


def _overlap(run: Run, which: str, ranks: int) -> Finding | None:
    """Require that the message for the next step is under way when a block is computed."""
    for step, progress in zip(run.steps[which], run.progress[which], strict=True):
        if step == ranks - 1:
            continue
        what = ""
        if progress.sends <= step:
            what = "nothing is being sent"
        elif progress.receives <= step:
            what = "no receive has started"
        elif progress.waited > (step if which == "forward" else 2 * step):
            what = "the next block was already waited for"
        if what:
            function = _ring.FUNCTIONS[which]
            return MISTAKES.no_overlap(which=which, step=step, what=what, function=function)
    return None


def _memory(case: Case, run: Run) -> Finding | None:
    for which, steps in run.steps.items():
        for step, alive in zip(steps, run.alive[which], strict=True):
            if alive > 1:
                return MISTAKES.hoards(which=which, step=step, got=alive)
    limit = 3 * case.block_bytes + 2 * case.lse_bytes + case.mask_bytes  # even if copied
    if run.kept > limit:
        return MISTAKES.keeps_more(got=run.kept, right=limit)
    return None


def _refusals(trial: Trial) -> None:
    right = n, length = trial.size, 4
    for shape in ((n + 1, length), (n, length + 2), (n * length,)):
        positions = torch.arange(torch.Size(shape).numel()).view(shape)
        inputs = torch.ones(3, 1, length, 1, 2)
        require_refusal(
            trial,
            lambda inputs=inputs, positions=positions: trial.check.function(
                *inputs, positions, trial.group
            ),
            MISTAKES.not_refused(shape=shape, right=right),
            what=f"positions of shape {shape}, not {right}",
            names="positions",
            seconds=SECONDS,
        )
