"""Exercise `flat_shard`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, has_parts, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.zero._models import awkward_blocks

MISTAKES = Mistakes(
    other_elements=(
        "the buffer has {got} elements, expected {right}: those of each trainable tensor once, of "
        "no frozen one, and zeros up to a multiple of `world_size`"
    ),
    own_order=(
        "the buffer has the right parameters, but not in the order in which they first occur in "
        "the list. Another order, such as that of a set, can differ between ranks"
    ),
    not_views=(
        "{name} is not the view of its part of the buffer, so the model would not see what is "
        "gathered there. Set parameter.data"
    ),
    shard_copied="the shard is a copy, so an update of it would not reach the buffer",
    strided="the shard has every N-th element: rank r's shard is the r-th part, in one piece",
    own_rank=(
        "this is the shard of the rank that runs the code: use the arguments `rank` and "
        "`world_size`"
    ),
)
RANKS = {f"a buffer for N = {ranks}": ranks for ranks in (4, 3, 7, 1000, 2, 1)}


@check_of(MISTAKES)
def flat_shard(check: Check) -> str:
    """Check buffers for one to many ranks, with tied and frozen parameters, in two dtypes."""
    with check.trial() as trial:
        for _, ranks in trial.cases(RANKS):
            model = awkward_blocks(trial.draw)
            if ranks == 4:
                model.float()
            # Rank 0 of several asks for the first shard. The others ask for another one, if any.
            rank = min(trial.draw.randrange(ranks) + (trial.rank > 0), ranks - 1)
            if trial.rank == 0 and trial.size > 1:
                rank = 0
            named = dict(model.named_parameters(remove_duplicate=False))
            before = {name: p.detach().clone() for name, p in named.items()}
            got = trial.run(list(named.values()), rank, ranks)
            trial.require(
                lambda: form(got),
                lambda: buffer_is_right(got[0], named, before, ranks),
                lambda: parameters_are_views(named, before, got[0]),
                lambda: shard_is_right(*got, rank, ranks, trial.rank),
            )
    return (
        "one buffer, each trainable parameter once and as a view, padded with zeros; whole shards"
    )


def form(got: Any) -> Finding | None:
    if finding := has_parts(got, "flat, shard"):
        return finding
    if any(tensor.requires_grad for tensor in got):
        return observed("the buffer or the shard requires a gradient: copy detached parameters")
    return None


def buffer_is_right(
    flat: Any, named: dict[str, nn.Parameter], before: dict[str, Tensor], ranks: int
) -> Finding | None:
    """Compare with the parameters, each once in the order of the list, and padded with zeros."""
    trainable = {p: before[name] for name, p in named.items() if p.requires_grad}  # each once
    vector = torch.cat([value.flatten() for value in trainable.values()])
    right, used = F.pad(vector, (0, -len(vector) % ranks)), len(vector)
    finding = equal(flat, right, "the buffer")
    if finding and finding.mistake == "wrong_shape" and flat.dim() == 1:
        return MISTAKES.other_elements(got=len(flat), right=len(right))
    if finding is None or finding.mistake or same(flat[:used], right[:used]):
        return finding
    in_another_order = same(flat[:used].sort().values, right[:used].sort().values)
    return MISTAKES.own_order() if in_another_order else finding


def parameters_are_views(
    named: dict[str, nn.Parameter], before: dict[str, Tensor], flat: Tensor
) -> Finding | None:
    """Require that each trainable parameter is the next part of the buffer."""
    start, inside = flat.data_ptr(), set()
    for name, parameter in named.items():
        frozen = name == "frozen.weight"
        if finding := equal(parameter.data, before[name], name):
            return finding
        if parameter.requires_grad == frozen:
            return observed(f"{name}.requires_grad is {frozen}, expected {not frozen}")
        if frozen or parameter in inside:
            continue
        inside.add(parameter)
        if parameter.data_ptr() != start:
            return MISTAKES.not_views(name=name)
        start += parameter.nbytes
    return None


def shard_is_right(flat: Tensor, shard: Any, rank: int, ranks: int, running: int) -> Finding | None:
    """Compare with the shard of `rank`; `running` is the rank that runs this."""
    width = len(flat) // ranks
    right, own = (flat[r * width : (r + 1) * width] for r in (rank, running))
    wrong = {"strided": flat[rank::ranks], "own_rank": own}
    finding = explained(shard, right, wrong, MISTAKES, "the shard")
    if finding is None and shard.data_ptr() != right.data_ptr():
        return MISTAKES.shard_copied()
    return finding
