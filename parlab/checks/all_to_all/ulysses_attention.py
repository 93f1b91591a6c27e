"""Exercise `ulysses_attention`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.ledger import Call
from parlab.ledger.ledger import ring_bytes_sent

MISTAKES = Mistakes(
    own_tokens_only="the output is the attention to the tokens of this rank alone",
    batch_mixed=(
        "the samples of the batch are mixed: after the all-to-all, the ranks come before the "
        "batch. Move them next to the tokens before you flatten both into one dimension"
    ),
    heads_mixed=(
        "the heads are in the wrong order: the heads of a rank belong together. Move the ranks in "
        "front of the heads before you flatten both into one dimension"
    ),
    mask_ignored="a token sees later tokens, although `causal` is True",
    always_masked="a token does not see later tokens, although `causal` is False",
    no_autograd=(
        "the output does not require a gradient: autograd does not know about an all-to-all of "
        "torch.distributed. Use your `exchange`, whose backward pass sends the gradients back"
    ),
    not_sent_back=(
        "the backward pass sends only {got} bytes to other ranks, and {enough} are needed. The "
        "gradient of what came from other ranks must go back to them"
    ),
    sends_more=(
        "the {which} pass sends {got} bytes to other ranks, and {enough} are enough: q, k, and v "
        "of 1/N of the heads to each rank, and the output of its tokens"
    ),
    separate=(
        "the {which} pass has {got} all-to-alls, and two are enough. Send q, k, and v in one, "
        "since each costs a start-up time"
    ),
    not_refused=(
        "it accepts {heads} heads on {ranks} ranks: raise a ValueError that names the number of "
        "heads"
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
    gradients: list[Tensor | None]
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
            _refuses(trial, 2 * n + 1)
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
    right = [x.chunk(n, dim=1)[rank] for x in _serial(whole, causal)]
    run = trial.run_function(_run, trial, leaves, causal, pull, seconds=SECONDS)
    to_others = 4 * right[0].nbytes * (n - 1) // n

    def output() -> Finding | None:
        wrong = _wrong(whole[:3], causal, n, rank)
        return explained(run.output, right[0], wrong, MISTAKES, "the output", TOLERANCE)

    def gradients() -> Finding | None:
        named = zip("qkv", run.gradients, right[1:], strict=True)
        found = (equal(g, x, f"the gradient of `{name}`", TOLERANCE) for name, g, x in named)
        return next(filter(None, found), None)

    def arguments() -> Finding | None:
        named = zip("qkv", leaves, whole[:3], strict=True)
        found = (unchanged(f"`{name}`", x, all_.chunk(n, dim=1)[rank]) for name, x, all_ in named)
        return next(filter(None, found), None)

    trial.require(
        arguments,
        output,
        lambda: None if run.output.requires_grad else MISTAKES.no_autograd(),
        lambda: _enough_sent_back(run, to_others),
        gradients,
        lambda: _contiguous(run),
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
        [x.grad for x in leaves],
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


def _wrong(whole: Tensor, causal: bool, n: int, rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield what mistakes compute on this rank."""

    def own(x: Tensor) -> Tensor:
        return x.chunk(n, dim=1)[rank]

    right = own(_attention(*whole, causal))
    yield "own_tokens_only", _attention(*(own(x) for x in whole), causal)
    yield "mask_ignored" if causal else "always_masked", own(_attention(*whole, not causal))
    yield "heads_mixed", right.unflatten(2, (n, -1)).transpose(2, 3).flatten(2, 3)
    yield "heads_mixed", right.unflatten(2, (-1, n)).transpose(2, 3).flatten(2, 3)
    ranks_first = whole.unflatten(2, (n, -1)).movedim(2, 1)  # (3, N, batch, S/N, heads, size)
    mixed = _attention(*ranks_first.reshape(whole.shape), causal)
    yield "batch_mixed", own(mixed)
    yield "batch_mixed", mixed.reshape(ranks_first.shape[1:])[rank]


def _contiguous(run: Run) -> Finding | None:
    if run.contiguous:
        return None
    return COMMON.not_contiguous(error="a tensor of an all-to-all is not contiguous")


def _enough_sent_back(run: Run, to_others: int) -> Finding | None:
    got = int(ring_bytes_sent(run.calls["backward"]))
    if got >= to_others:
        return None
    return MISTAKES.not_sent_back(got=got, enough=to_others)


def _sends_more(run: Run, which: str, to_others: int, n: int) -> Finding | None:
    calls = run.calls[which] if n > 1 else []
    if (got := int(ring_bytes_sent(calls))) > to_others:
        return MISTAKES.sends_more(which=which, got=got, enough=to_others)
    if (count := sum(call.op == "all_to_all" for call in calls)) > 2:
        return MISTAKES.separate(which=which, got=count)
    sends = sum(call.bytes_sent > 0 and call.op != "all_to_all" for call in calls)
    if sends > 2 * (n - 1):
        return observed(f"the {which} pass sends {sends} messages, and {2 * (n - 1)} are enough")
    return None


def _refuses(trial: Trial, heads: int) -> None:
    zeros = [torch.zeros(1, 2, heads, 3) for _ in range(3)]
    trial.situation = f"with {trial.size} ranks, {heads} heads"
    require_refusal(
        trial,
        lambda: trial.check.function(*zeros, False, trial.group),
        MISTAKES.not_refused(heads=heads, ranks=trial.size),
        names=str(heads),
        seconds=SECONDS,
    )
