"""Exercise `ulysses_attention`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.ledger import Call
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
SECONDS = 10.0  # a busy machine takes long to bring ranks together
# Batch, tokens and heads of each rank, causal, and how q, k, and v lie in memory.
CASES = {
    "causal": (2, 3, 2, True, "contiguous"),
    "not causal": (3, 2, 1, False, "contiguous"),
    "one sample": (1, 4, 3, True, "contiguous"),
    "q, k, and v are slices of one tensor": (2, 2, 2, False, "slices"),
    "heads come before tokens in memory": (2, 3, 2, True, "transposed"),
    "an expanded gradient": (2, 2, 1, True, "expanded"),
}


@dataclass
class Run:
    """A forward and a backward pass on this rank, with the calls and bytes of each pass."""

    output: Any
    calls: dict[str, list[Call]]
    contiguous: bool


@check_of(MISTAKES)
def ulysses_attention(check: Check) -> str:
    """Check output, gradients, and calls; and heads that the ranks cannot share."""
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
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    whole = torch.randn(4, *shape, dtype=torch.float64, generator=generator)
    if layout == "expanded":
        whole[3] = whole[3, :1, :1, :1, :1]
    n, rank = trial.size, max(trial.rank, 0)
    own = [_placed(x.chunk(n, dim=1)[rank], layout) for x in whole[:3]]
    if layout == "slices":
        own = list(torch.cat(own, -1).chunk(3, -1))
    pull = whole[3].chunk(n, dim=1)[rank].clone()
    if layout == "expanded":
        pull = pull[:1, :1, :1, :1].expand_as(pull)
    leaves = [x.detach().requires_grad_() for x in own]
    right, *of_inputs = (x.chunk(n, dim=1)[rank] for x in _serial(whole, causal))
    run = trial.run_function(_run, trial, leaves, causal, pull, seconds=SECONDS)
    to_others = 4 * right.nbytes * (n - 1) // n
    own = [x.chunk(n, dim=1)[rank] for x in whole[:3]]
    mixed = _mixed(whole[:3], right, causal, rank)
    trial.require(
        *(
            lambda name=name, x=x, before=before: unchanged(f"`{name}`", x, before)
            for name, x, before in zip("qkv", leaves, own, strict=True)
        ),
        lambda: explained(run.output, right, mixed, MISTAKES, "the output", TOLERANCE),
        lambda: None if run.output.requires_grad else MISTAKES.no_autograd(),
        *(
            lambda name=name, x=x, g=g: equal(x.grad, g, f"the gradient of `{name}`", TOLERANCE)
            for name, x, g in zip("qkv", leaves, of_inputs, strict=True)
        ),
        lambda: (
            None
            if run.contiguous
            else COMMON.not_contiguous(error="a tensor of an all-to-all is not contiguous")
        ),
        lambda: _sends_more(run, "forward", to_others, n),
        lambda: _sends_more(run, "backward", to_others, n),
    )


def _placed(x: Tensor, layout: str) -> Tensor:
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.clone()


def _run(trial: Trial, leaves: list[Tensor], causal: bool, pull: Tensor) -> Run:
    trial.group.take_events()
    # Views, because a leaf could not be changed in place.
    output = trial.check.function(*(x.view_as(x) for x in leaves), causal, trial.group)
    forward = len(trial.ledger.calls)
    if isinstance(output, Tensor) and output.requires_grad and output.shape == pull.shape:
        output.backward(pull)
    calls = trial.ledger.calls
    return Run(
        output,
        {"forward": calls[:forward], "backward": calls[forward:]},
        all(event.contiguous for event in trial.group.take_events()),
    )


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Return the attention of (batch, tokens, heads, head size)."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, is_causal=causal).transpose(1, 2)


def _serial(whole: Tensor, causal: bool) -> list[Tensor]:
    """Return the output of all tokens, and the gradients of q, k, and v. `whole[3]` is its own."""
    leaves = [x.clone().requires_grad_() for x in whole[:3]]
    output = _attention(*leaves, causal)
    return [output.detach(), *torch.autograd.grad(output, leaves, whole[3])]


def _mixed(whole: Tensor, right: Tensor, causal: bool, rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the outputs of this rank if dimensions are mixed up."""
    n = whole.shape[2] // right.shape[1]
    yield "heads_mixed", right.unflatten(2, (n, -1)).transpose(2, 3).flatten(2, 3)
    yield "heads_mixed", right.unflatten(2, (-1, n)).transpose(2, 3).flatten(2, 3)
    ranks_first = whole.unflatten(2, (n, -1)).movedim(2, 1)  # (3, N, batch, S/N, heads, size)
    mixed = _attention(*ranks_first.reshape(whole.shape), causal)
    yield "batch_mixed", mixed.chunk(n, dim=1)[rank]
    yield "batch_mixed", mixed.reshape(ranks_first.shape[1:])[rank]


def _sends_more(run: Run, which: str, to_others: int, n: int) -> Finding | None:
    """Allow two all-to-alls, or as many messages as they need."""
    calls = run.calls[which] if n > 1 else []
    got = int(ring_bytes_sent(calls))
    all_to_alls = sum(call.op == "all_to_all" for call in calls)
    sends = sum(call.bytes_sent > 0 and call.op != "all_to_all" for call in calls)
    if got <= to_others and all_to_alls <= 2 and sends <= 2 * (n - 1):
        return None
    count = all_to_alls + sends
    return MISTAKES.sends_more(which=which, got=got, calls=count, enough=to_others)
