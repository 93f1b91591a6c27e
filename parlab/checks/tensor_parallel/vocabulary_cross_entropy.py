"""Exercise `vocabulary_cross_entropy`."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import requirements
from parlab.checks.tensor_parallel.layers import SECONDS, random
from parlab.checks.trial import Trial
from parlab.ledger import Call

MISTAKES = Mistakes(
    logits_gathered=(
        "{got} bytes of collectives for {tokens} tokens, with {vocabulary} scores each: the scores "
        "travel. Three numbers a token are enough: the maximum, the sum, the target's score"
    ),
    sent_backward=(
        "the backward pass sends {got} bytes: every rank has all that its part of the gradient "
        "needs, the sum over the ranks and the maximum"
    ),
    too_many_calls=(
        "{got} collectives: three numbers a token are enough, the maximum, the sum and the "
        "target's score"
    ),
    max_of_all_tokens=(
        "the loss is {got} where {right} is right, with a token whose scores lie far below those "
        "of the others: e to the power of its scores, less the maximum of all tokens, is 0. Each "
        "token has a maximum of its own"
    ),
    underflow=(
        "the loss is {got} where {right} is right, for scores of some {scale}: for some token "
        "the sum of e^(x − maximum) is 0: what is subtracted there is more than its largest score"
    ),
    max_not_shared=(
        "every rank subtracts the maximum of its own scores: the sums of different ranks then do "
        "not belong together. The maximum is to be that of all ranks"
    ),
    overflow=(
        "the loss is {got} where {right} is right, for scores of some {scale}: e to that power is "
        "no number. Subtract the maximum over the vocabulary first"
    ),
    own_softmax=(
        "the loss is that over this rank's part of the vocabulary alone: the sum of e^x goes over "
        "all ranks"
    ),
    target_everywhere=(
        "every rank contributes a score for every target: only the rank that has the target's "
        "token does, and the others contribute 0"
    ),
    target_not_summed=(
        "this rank's loss lacks the scores of targets that lie in other ranks' parts: only one "
        "rank has a target's score, and its sum over the ranks gives it to all"
    ),
    summed_over_tokens="the loss is the sum over the tokens where the mean is asked for",
    gradient_times=(
        "the gradient of `scores` is {ranks} times what is right: every rank has the loss's "
        "gradient already, and it was added up over the ranks. g's backward sends nothing"
    ),
    no_gradient=(
        "`scores` gets no gradient: the graph ends at a collective that autograd does not see"
    ),
    half_gradient=(
        "the gradient of `scores` is that of {which} alone: the other part of the loss came "
        "through a collective that autograd does not see"
    ),
)


@dataclass
class Seen:
    """What came out on this rank."""

    loss: object
    gradient: Tensor | None
    scores_after: Tensor
    targets_after: Tensor
    forward: list[Call]
    backward: list[Call]


@check_of(MISTAKES)
def vocabulary_cross_entropy(check: Check) -> str:
    """Check loss, gradient and bytes: small and large scores, and one rank far below another."""
    for trial in check.trials():
        cases = {
            "small": 1.0,
            "large": 400.0,
            "one rank far below": 3.0,
            "one token far below": 3.0,
        }
        for number, (name, scale) in enumerate(cases.items()):
            trial.situation = f"{trial.size} ranks, {name} scores"
            _one(trial, name, scale, (2, 3) if number < 2 else (4,))
    return (
        "loss and gradient of the whole softmax, for scores from −1000 to 1000; a few numbers a "
        f"token are sent, on 1 to {check.world_size} ranks"
    )


def _run(trial: Trial, scores: Tensor, targets: Tensor) -> Seen:
    leaf = scores.clone().requires_grad_()
    start = len(trial.ledger.calls)
    targets = targets.clone()
    loss = trial.check.function(leaf.view_as(leaf), targets, trial.group)
    middle = len(trial.ledger.calls)
    gradient = None
    if isinstance(loss, Tensor) and loss.shape == () and loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    loss = loss.detach() if isinstance(loss, Tensor) else loss
    calls = trial.ledger.calls
    return Seen(loss, gradient, leaf.detach(), targets, calls[start:middle], calls[middle:])


def _one(trial: Trial, name: str, scale: float, shape: tuple[int, ...]) -> None:
    n = trial.size
    part = trial.draw.randrange(16, 21) * 2
    vocabulary = n * part
    whole = scale * random(trial.draw, *shape, vocabulary)
    if name.startswith("one"):  # e^(x − m) of the other ranks is 0 then
        low = trial.draw.randrange(n)
        if name == "one rank far below":
            whole[..., low * part : (low + 1) * part] -= 900
        else:
            whole.view(-1, vocabulary)[low % 4] -= 900
    elif name == "large":
        whole = whole.clamp(-1000, 1000)
    tokens = whole[..., 0].numel()
    drawn = [trial.draw.randrange(vocabulary) for _ in range(tokens)]
    border = trial.draw.randrange(1, n) * part if n > 1 else 1
    drawn[:3], drawn[-1] = [0, border, border - 1], vocabulary - 1
    targets = torch.tensor(drawn).view(shape)
    mine = whole.chunk(n, dim=-1)[max(trial.rank, 0)].clone()
    leaf = whole.clone().requires_grad_()
    right = F.cross_entropy(leaf.flatten(0, -2), targets.flatten())
    right.backward()
    seen = trial.run_function(_run, trial, mine, targets, seconds=SECONDS)
    own = leaf.grad.chunk(n, dim=-1)[max(trial.rank, 0)]
    trial.require(
        lambda: form(seen.loss),
        lambda: None if same(seen.scores_after, mine) else COMMON.argument_changed(name="`scores`"),
        lambda: (
            None if same(seen.targets_after, targets) else COMMON.argument_changed(name="`targets`")
        ),
        lambda: sent(seen, tokens, vocabulary, trial.size),
        lambda: loss_is(seen.loss, right.detach(), whole, targets, trial, scale),
        lambda: gradient_is(seen, own, whole, targets, trial),
        lambda: few_calls(seen, n),
    )


def form(loss: object) -> Finding | None:
    if loss is None:
        return COMMON.returns_none()
    if not isinstance(loss, Tensor):
        return COMMON.wrong_type(
            name="the loss", got=f"a {type(loss).__name__}", right="a torch.Tensor"
        )
    if loss.shape != ():
        return COMMON.wrong_shape(name="the loss", got=tuple(loss.shape), right=())
    return None


def sent(seen: Seen, tokens: int, vocabulary: int, ranks: int) -> Finding | None:
    """Some numbers of 8 bytes for each token and rank, no part of the scores."""
    if ranks == 1:
        return None
    got = sum(call.bytes for call in seen.forward)
    if got > 8 * tokens * 6 * ranks:
        return MISTAKES.logits_gathered(got=got, tokens=tokens, vocabulary=vocabulary)
    return None


def few_calls(seen: Seen, ranks: int) -> Finding | None:
    """Three collectives forward, and none backward."""
    if ranks > 1 and seen.backward:
        return MISTAKES.sent_backward(got=requirements.told_calls(seen.backward))
    if ranks > 1 and len(seen.forward) > 3:
        return MISTAKES.too_many_calls(got=len(seen.forward))
    return None


def loss_is(
    got: Tensor, right: Tensor, whole: Tensor, targets: Tensor, trial: Trial, scale: float
) -> Finding | None:
    if same(got, right, TOLERANCE):
        return equal(got, right, "the loss", TOLERANCE)
    n = trial.size
    shown = {"got": got.item(), "right": f"{right.item():.4g}"}
    scale_seen = f"{whole.abs().max().item():.0f}"
    highest_of_all = whole.amax()
    if not got.isfinite() and not (whole - highest_of_all).exp().sum(-1).all() and scale < 10:
        return MISTAKES.max_of_all_tokens(**shown)
    if got == -math.inf:
        return MISTAKES.underflow(**shown, scale=scale_seen)
    if not got.isfinite():
        return MISTAKES.overflow(**shown, scale=scale_seen)
    if same(got, right * targets.numel(), TOLERANCE):
        return MISTAKES.summed_over_tokens()
    if n == 1:
        return equal(got, right, "the loss", TOLERANCE)
    parts = whole.chunk(n, dim=-1)
    count = parts[0].shape[-1]
    local = [targets - r * count for r in range(n)]
    inside = [(one >= 0) & (one < count) for one in local]
    highest = [p.amax(-1) for p in parts]
    picked = [
        p.gather(-1, (one * there).unsqueeze(-1)).squeeze(-1)
        for p, one, there in zip(parts, local, inside, strict=True)
    ]
    target = sum(p * there for p, there in zip(picked, inside, strict=True))
    own_max = sum(m * there for m, there in zip(highest, inside, strict=True))
    shifted = sum((p - m.unsqueeze(-1)).exp().sum(-1) for p, m in zip(parts, highest, strict=True))
    mine = max(trial.rank, 0)
    for shift in (own_max, highest[mine]):
        if same(got, (shifted.log() - target + shift).mean(), TOLERANCE):
            return MISTAKES.max_not_shared()
    if same(got, (shifted.log() - target).mean(), TOLERANCE):
        return MISTAKES.max_not_shared()
    alone = parts[mine].logsumexp(-1)
    if same(got, (alone - target).mean(), TOLERANCE):
        return MISTAKES.own_softmax()
    log_sum = whole.logsumexp(-1)
    top = whole.amax(-1)
    wrong_index = [
        p.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        for p, index in zip(parts, [one.clamp(0, count - 1) for one in local], strict=True)
    ]
    modulo = [p.gather(-1, (targets % count).unsqueeze(-1)).squeeze(-1) for p in parts]
    for base in (0.0, top):
        own_part = (picked[mine] - base) * inside[mine]
        if same(got, (log_sum - base - own_part).mean(), TOLERANCE):
            return MISTAKES.target_not_summed()
    for chosen in (picked, wrong_index, modulo):
        for base in (0.0, top):
            summed = sum(one - base for one in chosen)
            if same(got, (log_sum - base - summed).mean(), TOLERANCE):
                return MISTAKES.target_everywhere()
    return equal(got, right, "the loss", TOLERANCE)


def gradient_is(
    seen: Seen, right: Tensor, whole: Tensor, targets: Tensor, trial: Trial
) -> Finding | None:
    n, got = trial.size, seen.gradient
    if got is None:
        return MISTAKES.no_gradient()
    if same(got, right, TOLERANCE):
        return equal(got, right, "the gradient of `scores`", TOLERANCE)
    if n > 1 and same(got, n * right, TOLERANCE):
        return MISTAKES.gradient_times(ranks=n)
    softmax = whole.softmax(-1).chunk(n, dim=-1)[trial.rank] / targets.numel()
    if same(got, softmax, TOLERANCE):
        return MISTAKES.half_gradient(which="the sum")
    if same(got, right - softmax, TOLERANCE):
        return MISTAKES.half_gradient(which="the targets' scores")
    if n > 1 and seen.backward:
        return MISTAKES.sent_backward(got=requirements.told_calls(seen.backward))
    if got.shape != right.shape:
        return evidence(f"the gradient of `scores` has shape {tuple(got.shape)}")
    return equal(got, right, "the gradient of `scores`", TOLERANCE)
