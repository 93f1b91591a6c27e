"""Exercise `flat_shard`."""

from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.zero.models import awkward_blocks, parameter_vector

MISTAKES = Mistakes(
    tied_twice=(
        "the buffer has the tied parameter twice: it would be sent twice, and updated twice. "
        "`parameters` may name one tensor more than once"
    ),
    frozen_inside=(
        "the buffer has frozen parameters in it: they get no gradient, and an optimizer with "
        "weight decay would change them"
    ),
    own_order=(
        "the buffer has the right parameters in another order than the list: ranks that sort by "
        "what differs between them (a set, an address) gather each other's wrong numbers"
    ),
    rest_dropped=(
        "the buffer has {got} numbers for {used} of parameters: rounded down to a multiple of N, "
        "the last parameters are on no rank"
    ),
    not_padded="the buffer has {got} numbers, which {ranks} ranks cannot share evenly",
    padded_too_much=(
        "the buffer has {got} numbers where {right} are enough: pad its end once, not each "
        "parameter, and by fewer numbers than there are ranks"
    ),
    padding_not_zero="the padding is {got}, not zero: it would leak into every norm and every sum",
    not_views=(
        "{name} is no view into the buffer: what is gathered into the buffer would not reach the "
        "model. Set parameter.data"
    ),
    shard_copied="the shard is a copy: an update of it would not reach the buffer",
    strided=(
        "the shard takes every N-th number: a gather lays shards one after the other, so rank r's "
        "is the r-th part of the buffer, in one piece"
    ),
    first_shard="every rank has the first shard: `rank` says which part is this one's",
    own_rank=(
        "the shard is that of rank {rank}, which runs this: the argument `rank` says whose is "
        "asked for, and `world_size` of how many"
    ),
    values_lost="{name} has other values than before: copy them into the buffer first",
)


@check_of(MISTAKES)
def flat_shard(check: Check) -> str:
    """Check buffers for one to many ranks, with tied and frozen parameters, in two dtypes."""
    with check.trial() as trial:
        for ranks in (4, 3, 7, 1000, 2, 1):
            model = awkward_blocks(trial.draw)
            if ranks == 4:
                model.float()
            named = dict(model.named_parameters(remove_duplicate=False))
            given, dtype = list(named.values()), model.embed.weight.dtype
            rank = min(trial.draw.randrange(ranks) + (trial.rank > 0), ranks - 1)
            if trial.rank == 0 and trial.size > 1:
                rank = 0  # elsewhere the first shard and that of whoever runs this are two
            trial.situation = f"rank {rank} of {ranks}"
            before = {name: p.detach().clone() for name, p in named.items()}
            got = trial.run(given, rank, ranks)
            trial.require(
                lambda: form(got, dtype),
                lambda: buffer(got[0], given, before, ranks),
                lambda: parameters_of(model, before, got[0]),
                lambda: shard_of(*got, rank, ranks, trial.rank),
            )
    return (
        "one buffer, each trainable parameter once and as a view, padded with zeros; whole shards"
    )


def form(got: Any, dtype: torch.dtype) -> Finding | None:
    if got is None:
        return COMMON.returns_none()
    if not isinstance(got, tuple | list) or len(got) != 2:
        return evidence(f"it returns {type(got).__name__}: the buffer and the shard are asked for")
    for name, tensor in zip(("the buffer", "the shard"), got, strict=True):
        if not isinstance(tensor, Tensor):
            return COMMON.wrong_type(name=name, got=f"a {type(tensor).__name__}", right="a tensor")
        if tensor.dtype != dtype:
            return COMMON.wrong_dtype(name=name, got=tensor.dtype, right=f"the parameters' {dtype}")
        if tensor.dim() != 1:
            return evidence(f"{name} has shape {tuple(tensor.shape)}, not one dimension")
        if tensor.requires_grad:
            return evidence(f"{name} requires a gradient: fill it with the detached parameters")
    return None


def buffer(
    flat: Tensor, given: list[nn.Parameter], before: dict[str, Tensor], ranks: int
) -> Finding | None:
    """What is in it; `given` are the parameters as named, `before` their values."""
    values = dict(zip(given, before.values(), strict=True))
    trainable = [p for p in dict.fromkeys(given) if p.requires_grad]
    right = torch.cat([values[p].flatten() for p in trainable])
    used, got = len(right), len(flat)
    length = -(-used // ranks) * ranks
    for wrong, finding in (
        ([p for p in given if p.requires_grad], MISTAKES.tied_twice),
        (list(dict.fromkeys(given)), MISTAKES.frozen_inside),
        (given, MISTAKES.tied_twice),
    ):
        vector = torch.cat([values[p].flatten() for p in wrong])
        if got >= len(vector) > used and same(flat[: len(vector)], vector):
            return finding()
    if got % ranks:
        return MISTAKES.not_padded(got=got, ranks=ranks)
    if got < used:
        return MISTAKES.rest_dropped(got=got, used=used)
    if got > length:
        return MISTAKES.padded_too_much(got=got, right=length)
    if not same(flat[:used], right):
        if same(flat[:used].sort().values, right.sort().values):
            return MISTAKES.own_order()
        if not flat.any():
            return MISTAKES.values_lost(name="the buffer")
        return equal(flat[:used], right, "the buffer")
    if flat[used:].any():
        return MISTAKES.padding_not_zero(got=f"{flat[used:][flat[used:] != 0][0].item():.4g}")
    return None


def parameters_of(
    model: nn.Module,
    before: dict[str, Tensor],
    flat: Tensor,
) -> Finding | None:
    storage = flat.untyped_storage().data_ptr()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not same(parameter, before[name]):
            return MISTAKES.values_lost(name=name)
        inside = parameter.untyped_storage().data_ptr() == storage
        if parameter.requires_grad and not inside:
            return MISTAKES.not_views(name=name)
        if not parameter.requires_grad and name != "frozen.weight":
            return evidence(f"{name}.requires_grad is False now")
        if inside and name == "frozen.weight":
            return MISTAKES.frozen_inside()
    in_order = [p for p in model.parameters() if p.requires_grad]
    if not same(parameter_vector(in_order), flat[: sum(p.numel() for p in in_order)]):
        return evidence("the parameters, side by side, are not what is in the buffer")
    return None


def shard_of(flat: Tensor, shard: Tensor, rank: int, ranks: int, here: int) -> Finding | None:
    """Whether it is that of `rank`; `here` is who runs this."""
    width = len(flat) // ranks
    right = flat[rank * width : (rank + 1) * width]
    if not same(shard, right):
        if ranks > 1 and same(shard, flat[rank::ranks]):
            return MISTAKES.strided()
        if rank and same(shard, flat[:width]):
            return MISTAKES.first_shard()
        if here > 0 and same(shard, flat[here * width : (here + 1) * width]):
            return MISTAKES.own_rank(rank=here)
        return equal(shard, right, "the shard")
    if shard.data_ptr() != right.data_ptr():
        return MISTAKES.shard_copied()
    return None
