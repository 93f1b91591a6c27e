"""Exercise `vocabulary_cross_entropy`."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _passes as passes
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, Run, gradient_of, random

MISTAKES = Mistakes(
    logits_gathered=(
        "it sends {got} for {tokens} tokens with {vocabulary} scores each: do not send scores. "
        "Three numbers for each token are enough: the maximum, the sum, and the target's score"
    ),
    sent_backward=(
        "the backward pass sends {got}: every rank has all that it needs for its part of the "
        "gradient, so send nothing"
    ),
    not_finite=(
        "the loss is {got}, expected {right}: for some token, an exponential overflows, or a "
        "logarithm gets 0. Subtract each token's own maximum over the whole vocabulary, and take "
        "the logarithm of the sum alone"
    ),
    max_not_shared=(
        "every rank subtracts the maximum of its own scores, so the ranks' sums do not belong "
        "together: subtract the maximum over all ranks"
    ),
    target_not_summed=(
        "the scores of targets on other ranks are missing: only one rank has a target's score, so "
        "add it up over the ranks"
    ),
)
CASES = {  # scale of the scores, their shape, and which ones are lowered
    "small scores": (1.0, (2, 3), ""),
    "large scores": (400.0, (2, 3), ""),
    "one rank far below": (3.0, (4,), "rank"),
    "one rank far above": (3.0, (4,), "others"),
    "one token far below": (3.0, (4,), "token"),
}


@check_of(MISTAKES)
def vocabulary_cross_entropy(check: Check) -> str:
    """Check loss, gradient, and calls, for large scores, and for one rank far below the others."""
    for trial in check.trials():
        for _, (scale, shape, lowered) in trial.cases(CASES):
            _case(trial, scale, shape, lowered)
    return (
        "loss and gradient of the whole softmax, for scores from −1000 to 1000; a few numbers a "
        f"token are sent, on 1 to {check.world_size} ranks"
    )


def _case(trial: Trial, scale: float, shape: tuple[int, ...], lowered: str) -> None:
    n, r, pick = trial.size, trial.rank, trial.draw.randrange
    part = 2 * pick(16, 21)  # so many scores that their bytes identify them
    whole = (random(trial.draw, *shape, n * part) * scale).clamp(-1000, 1000)
    if lowered == "rank":
        whole.unflatten(-1, (n, part))[..., pick(n), :] -= 900
    elif lowered == "others":  # by so much that no number between the ranks' maxima would do
        whole -= 900
        whole.unflatten(-1, (n, part))[..., pick(n), :] += 1800
    elif lowered == "token":
        whole[pick(len(whole))] -= 900
    border = pick(1, n) * part if n > 1 else 1
    tokens = whole[..., 0].numel()
    drawn = [0, border, border - 1, *(pick(n * part) for _ in range(tokens - 4)), n * part - 1]
    targets = torch.tensor(drawn).view(shape)
    leaf = whole.clone().requires_grad_()
    loss = F.cross_entropy(leaf.flatten(0, -2), targets.flatten())
    loss.backward()
    own, of_own = (one.chunk(n, dim=-1)[r].clone() for one in (whole, leaf.grad))
    right = {OUTPUT: loss.detach(), gradient_of("scores"): of_own}

    def run() -> Run:
        inputs = {"scores": own, "targets": targets}
        function = partial(trial.check.function, group=trial.group)
        return passes.run(trial, function, inputs, torch.ones((), dtype=own.dtype), nn.Module())

    got = trial.run_function(run, seconds=SECONDS)

    def sends() -> Finding | None:
        text = passes.calls_text(got.calls["forward"])
        # Allow some numbers for each token and rank.
        if passes.total(got.calls["forward"]) > 8 * tokens * 6 * n:
            return MISTAKES.logits_gathered(got=text, tokens=tokens, vocabulary=n * part)
        if len(got.calls["forward"]) > 3:
            return observed(f"it sends {text}: three collectives are enough")
        sent = got.calls["backward"]
        return MISTAKES.sent_backward(got=passes.calls_text(sent)) if sent else None

    def values() -> Finding | None:
        value = got.values[OUTPUT]
        if isinstance(value, Tensor) and value.shape == () and not value.isfinite():
            return MISTAKES.not_finite(got=value.item(), right=f"{loss.item():.4g}")
        wrong = [(OUTPUT, *one) for one in _wrong_losses(whole, targets, n, r)]
        return passes.values_are(got.values, right, wrong, MISTAKES)

    trial.require(lambda: passes.unchanged(got), sends, values)


def _wrong_losses(
    whole: Tensor, targets: Tensor, ranks: int, rank: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses that mistakes compute."""
    parts = whole.chunk(ranks, dim=-1)
    owner, highest = targets // parts[0].shape[-1], torch.stack([p.amax(-1) for p in parts])
    target = whole.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    own_highest = highest.gather(0, owner.unsqueeze(0)).squeeze(0)
    shifted = sum((p - m.unsqueeze(-1)).exp().sum(-1) for p, m in zip(parts, highest, strict=True))
    yield "max_not_shared", (shifted.log() - target + own_highest).mean()
    log_sum, top = whole.logsumexp(-1), whole.amax(-1)
    yield "target_not_summed", (log_sum - top - (target - top) * (owner == rank)).mean()
