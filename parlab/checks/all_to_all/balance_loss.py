"""Exercise `balance_loss`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    own_tokens=(
        "f, P, or the loss is computed from the tokens of one rank at a time. Take f and P over "
        "the tokens of all ranks, and then multiply them"
    ),
    mean_of_means=(
        "the mean over the ranks is taken as if they had equally many tokens. Add up sums and "
        "numbers of tokens, and then divide"
    ),
    tokens_sent=(
        "it sends {got} bytes for {tokens} tokens and {experts} experts. Send sums for each "
        "expert, not a number for each token"
    ),
    no_gradient="the loss has no gradient: an all-reduce is invisible to autograd",
    not_times_ranks=(
        "the gradient of `probabilities_TE` is the derivative of the loss, so the mean over the "
        "ranks is N times too small. Multiply it by the number of ranks"
    ),
)
MANY = 120
CASES = {  # tokens of each rank in turn, experts, k
    "one expert for each token, one is never chosen": ((5,), 6, 1),
    "different numbers of tokens": ((3, 7, 11, 15), 4, 2),
    "tokens only on the first rank": ((6, 0, 0, 0), 3, 1),
    "many tokens": ((MANY,), 3, 2),
}
FACTOR = 3.0  # the factor of this loss in the model's loss
TOLERANCE = 1e-5
Tokens = tuple[Tensor, Tensor]  # their probabilities and chosen experts


@check_of(MISTAKES)
def balance_loss(check: Check) -> str:
    """Check the loss, its gradient, and what is sent, for even and uneven numbers of tokens."""
    for trial in check.trials():
        for _, (counts, n_experts, k) in trial.cases(CASES):
            counts = [counts[rank % len(counts)] for rank in range(trial.size)]
            _case(trial, [_draw(trial, count, n_experts, k) for count in counts])
    return (
        "f and P over the tokens of all ranks, and a gradient whose mean over the ranks is that of "
        f"the loss, on 1 to {check.world_size} ranks"
    )


def _draw(trial: Trial, tokens: int, n_experts: int, k: int) -> Tokens:
    """Draw probabilities, and experts that are often not the most probable ones."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    scores, noise = torch.randn(2, tokens, n_experts, generator=generator)
    scores += torch.arange(n_experts) / 3
    return scores.softmax(-1), (scores + noise).topk(k).indices


def _case(trial: Trial, tokens: list[Tokens]) -> None:
    probabilities, experts = tokens[trial.rank]
    given = probabilities.clone().requires_grad_(), experts.clone()

    def passes() -> Any:
        # A view, because a leaf could not be changed in place.
        loss = trial.check.function(given[0].view_as(given[0]), given[1], trial.group)
        if isinstance(loss, Tensor) and loss.requires_grad and loss.shape == ():
            (FACTOR * loss).backward()
        return loss

    loss = trial.run_function(passes)
    f, p = _means(tokens)
    count = sum(len(probabilities) for probabilities, _ in tokens)
    gradient = (trial.size * FACTOR * len(f) * f / count).repeat(len(probabilities), 1)

    def gradient_is() -> Finding | None:
        if not loss.requires_grad or given[0].grad is None:
            return MISTAKES.no_gradient()
        wrong, name = {"not_times_ranks": gradient / trial.size}, "the gradient of probabilities_TE"
        return explained(given[0].grad, gradient, wrong, MISTAKES, name, TOLERANCE)

    trial.require(
        lambda: unchanged("`probabilities_TE`", given[0], probabilities),
        lambda: unchanged("`experts_Tk`", given[1], experts),
        lambda: explained(
            loss.float() if isinstance(loss, Tensor) else loss,
            _loss(f, p),
            _wrong(tokens, trial.rank),
            MISTAKES,
            "the loss",
            TOLERANCE,
        ),
        lambda: something_sent(trial),
        lambda: _sums_only(trial, *probabilities.shape),
        gradient_is,
    )


def _means(tokens: list[Tokens]) -> tuple[Tensor, Tensor]:
    """Return f and P over the tokens of some ranks."""
    probabilities, experts = (torch.cat(of_ranks) for of_ranks in zip(*tokens, strict=True))
    counts = torch.bincount(experts.flatten(), minlength=probabilities.shape[1])
    return counts / counts.sum(), probabilities.mean(0)


def _loss(f: Tensor, p: Tensor) -> Tensor:
    return len(f) * f @ p


def _wrong(tokens: list[Tokens], rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses that mistakes compute."""
    (f, p), each = _means(tokens), [_means([one]) for one in tokens]
    means = [torch.stack(of_ranks).nan_to_num().mean(0) for of_ranks in zip(*each, strict=True)]
    yield "own_tokens", torch.stack([_loss(*one) for one in each]).mean()
    for name, (other_f, other_p) in (("own_tokens", each[rank]), ("mean_of_means", means)):
        for pair in ((other_f, other_p), (other_f, p), (f, other_p)):
            yield name, _loss(*pair)


def _sums_only(trial: Trial, tokens: int, n_experts: int) -> Finding | None:
    """Require few bytes in the case of many tokens. Both passes may send."""
    enough = 2 * 8 * (3 * n_experts + 4) * trial.size
    got = sum(call.bytes for call in trial.calls[trial.rank])
    if trial.size == 1 or tokens < MANY or got <= enough:
        return None
    return MISTAKES.tokens_sent(got=got, tokens=tokens, experts=n_experts)
