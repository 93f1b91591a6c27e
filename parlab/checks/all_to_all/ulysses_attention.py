"""Exercise `ulysses_attention`."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from parlab.checks.all_to_all._attention import drawn, own_part, serial
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.messages import contiguous
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.ledger.ledger import ring_bytes_sent

MISTAKES = Mistakes(
    batch_mixed=(
        "the samples of the batch are mixed: after the all-to-all, the ranks come before the "
        "batch. Move them next to the tokens before you flatten both into one dimension"
    ),
    heads_mixed=(
        "the heads are in the wrong order: the heads of a rank belong together. Move the ranks in "
        "front of the heads before you flatten both into one dimension"
    ),
    no_autograd=(
        "the output does not require a gradient: autograd does not know about an all-to-all of "
        "torch.distributed. Use your `exchange`, whose backward pass sends the gradients back"
    ),
    sends_more=(
        "the {which} pass sends {got} bytes to other ranks, in {calls} calls. Two all-to-alls are "
        "enough, one of q, k, and v together, and one of the output: {enough} bytes"
    ),
)
SECONDS = 10.0  # on a busy machine, the ranks may meet late
CASES = {  # batch, tokens and heads of each rank, causal, and a layout of `_attention.drawn`
    "causal": (2, 3, 2, True, "contiguous"),
    "not causal, q, k, and v are slices of one tensor": (3, 2, 1, False, "slices"),
    "one sample, heads come before tokens in memory": (1, 4, 3, True, "transposed"),
    "an expanded gradient": (2, 2, 1, True, "expanded"),
}


@check_of(MISTAKES)
def ulysses_attention(check: Check) -> str:
    """Check output, gradients, calls, and refusals of heads that the ranks cannot share."""
    for trial in check.trials():
        n = trial.size
        for _, (batch, tokens, heads, causal, layout) in trial.cases(CASES):
            shape = batch, n * tokens, n * heads, trial.draw.randrange(2, 6)
            _case(trial, shape, causal, layout)
        if n > 1:
            zeros, heads = torch.zeros(3, 1, 2, 2 * n + 1, 3), 2 * n + 1
            call = {f"{heads} heads on {n} ranks": (*zeros, False, trial.group)}
            require_refusals(trial, call, str(heads), seconds=SECONDS)
    return (
        "output and gradients of the whole sequence, with two all-to-alls in each pass, on 1 to "
        f"{check.world_size} ranks"
    )


def _case(trial: Trial, shape: tuple[int, ...], causal: bool, layout: str) -> None:
    whole, (*leaves, pull) = drawn(trial, shape, layout)
    mask = torch.ones(shape[1], shape[1]).tril().bool() if causal else None
    right, *gradients = (own_part(trial, x) for x in serial(whole, mask))
    # Views, because a leaf could not be changed in place.
    output = trial.run(*(x.view_as(x) for x in leaves), causal, trial.group, seconds=SECONDS)
    kept = [
        partial(unchanged, f"`{name}`", x, before)
        for name, x, before in zip("qkv", leaves, own_part(trial, whole[:3]), strict=True)
    ]
    wrong = _mixed(trial, whole, mask, right)
    trial.require(
        *kept,
        lambda: explained(output, right, wrong, MISTAKES, "the output", TOLERANCE),
        lambda: None if output.requires_grad else MISTAKES.no_autograd(),
        lambda: contiguous(trial),
        lambda: _sends_more("forward", trial, right.nbytes),
    )
    trial.run_function(lambda: output.backward(pull), seconds=SECONDS)
    trial.require(
        *kept,
        *(
            lambda name=name, x=x, g=g: equal(x.grad, g, f"the gradient of `{name}`", TOLERANCE)
            for name, x, g in zip("qkv", leaves, gradients, strict=True)
        ),
        lambda: contiguous(trial),
        lambda: _sends_more("backward", trial, right.nbytes),
    )


def _mixed(
    trial: Trial, whole: Tensor, mask: Tensor | None, right: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the outputs of this rank if dimensions are mixed up."""
    n = trial.size
    yield "heads_mixed", right.unflatten(2, (n, -1)).transpose(2, 3).flatten(2, 3)
    ranks_first = whole.unflatten(2, (n, -1)).movedim(2, 1)  # (4, N, batch, S/N, heads, size)
    mixed, *_ = serial(ranks_first.reshape(whole.shape), mask)
    yield "batch_mixed", own_part(trial, mixed)
    yield "batch_mixed", mixed.reshape(ranks_first.shape[1:])[trial.rank]


def _sends_more(which: str, trial: Trial, size: int) -> Finding | None:
    """Allow two all-to-alls, or as many messages as they need, of four tensors of `size` bytes."""
    n, calls = trial.size, trial.calls[trial.rank]
    got, enough = int(ring_bytes_sent(calls)), 4 * size * (n - 1) // n
    all_to_alls = sum(call.op == "all_to_all" for call in calls)
    sends = sum(call.bytes_sent > 0 and call.op != "all_to_all" for call in calls)
    if n == 1 or (got <= enough and all_to_alls <= 2 and sends <= 2 * (n - 1)):
        return None
    return MISTAKES.sends_more(which=which, got=got, calls=all_to_alls + sends, enough=enough)
