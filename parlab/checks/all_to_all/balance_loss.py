"""Exercise `balance_loss`."""

from collections.abc import Iterator
from dataclasses import dataclass
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
    own_tokens=("f or P is that of this rank's own tokens. Take both over the tokens of all ranks"),
    losses_averaged=(
        "this is the mean of the losses that ranks compute from their own tokens. First take f and "
        "P over the tokens of all ranks, and then multiply them"
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
CASES = {  # tokens of a rank by its number, experts, k
    "one expert for each token": (lambda rank: 9, 4, 1),
    "two experts for each token": (lambda rank: 7, 5, 2),
    "different numbers of tokens": (lambda rank: 3 + 4 * rank, 4, 2),
    "tokens only on the first rank": (lambda rank: 0 if rank else 6, 3, 1),
    "one expert is never chosen": (lambda rank: 5, 6, 1),
    "many tokens": (lambda rank: MANY, 3, 2),
}
FACTOR = 3.0  # by which the model's loss multiplies this one
TOLERANCE = 1e-5


@dataclass
class Tokens:
    """The probabilities and the chosen experts of all ranks' tokens, by rank."""

    probabilities: list[Tensor]
    experts: list[Tensor]

    @property
    def n_experts(self) -> int:
        return self.probabilities[0].shape[1]

    def loss(self, f: Tensor, p: Tensor) -> Tensor:
        return self.n_experts * f @ p

    def of(self, ranks: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return f and P over the tokens of some ranks."""
        counts = torch.bincount(torch.cat(self.experts[ranks]).flatten(), minlength=self.n_experts)
        return counts / counts.sum(), torch.cat(self.probabilities[ranks]).mean(0)


@check_of(MISTAKES)
def balance_loss(check: Check) -> str:
    """Check the loss, its gradient, and what is sent, for even and uneven numbers of tokens."""
    for trial in check.trials():
        for _, (tokens, n_experts, k) in trial.cases(CASES):
            drawn = [_draw(trial, tokens(rank), n_experts, k) for rank in range(trial.size)]
            _case(trial, Tokens(*map(list, zip(*drawn, strict=True))))
    return (
        "f and P over the tokens of all ranks, and a gradient whose mean over the ranks is that of "
        f"the loss, on 1 to {check.world_size} ranks"
    )


def _draw(trial: Trial, tokens: int, n_experts: int, k: int) -> tuple[Tensor, Tensor]:
    """Draw probabilities, and experts that are often not the most probable ones."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    scores, noise = torch.randn(2, tokens, n_experts, generator=generator)
    scores += torch.arange(n_experts) / 3
    return scores.softmax(-1), (scores + noise).topk(k).indices


def _case(trial: Trial, tokens: Tokens) -> None:
    own, experts = tokens.probabilities[trial.rank], tokens.experts[trial.rank]
    given = own.clone().requires_grad_(), experts.clone()

    def passes() -> tuple[Any, Tensor | None]:
        loss = trial.check.function(*given, trial.group)
        if isinstance(loss, Tensor) and loss.requires_grad and loss.shape == ():
            (FACTOR * loss).backward()
        return loss, given[0].grad

    got = trial.run_function(passes)
    right = tokens.loss(*tokens.of())
    trial.require(
        lambda: unchanged("`probabilities_TE`", given[0], own),
        lambda: unchanged("`experts_Tk`", given[1], experts),
        lambda: _value(trial, tokens, got[0], right),
        lambda: something_sent(trial),
        lambda: _sums_only(trial, tokens),
        lambda: _gradient(trial, tokens, *got),
    )


def _value(trial: Trial, tokens: Tokens, got: Any, right: Tensor) -> Finding | None:
    got = got.float() if isinstance(got, Tensor) else got
    wrong = _wrong_losses(tokens, trial.rank)
    return explained(got, right, wrong, MISTAKES, "the loss", TOLERANCE)


def _wrong_losses(tokens: Tokens, rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses that mistakes compute."""
    f, p = tokens.of()
    each = [tokens.of(slice(r, r + 1)) for r in range(len(tokens.experts))]
    own_f, own_p = each[rank]
    for pair in ((own_f, own_p), (own_f, p), (f, own_p)):
        yield "own_tokens", tokens.loss(*pair)
    yield "losses_averaged", torch.stack([tokens.loss(*one) for one in each]).mean()
    mean_f, mean_p = (torch.stack(means).nan_to_num().mean(0) for means in zip(*each, strict=True))
    for pair in ((mean_f, mean_p), (f, mean_p), (mean_f, p)):
        yield "mean_of_means", tokens.loss(*pair)


def _sums_only(trial: Trial, tokens: Tokens) -> Finding | None:
    """Require few bytes in the case of many tokens; both passes may send."""
    own = tokens.probabilities[trial.rank]
    enough = 2 * 8 * (3 * tokens.n_experts + 4) * trial.size
    got = sum(call.bytes for call in trial.calls[trial.rank])
    if trial.size == 1 or len(own) < MANY or got <= enough:
        return None
    return MISTAKES.tokens_sent(got=got, tokens=len(own), experts=tokens.n_experts)


def _gradient(trial: Trial, tokens: Tokens, loss: Tensor, got: Tensor | None) -> Finding | None:
    if not loss.requires_grad or got is None:
        return MISTAKES.no_gradient()
    n, count = trial.size, sum(map(len, tokens.experts))
    right = (n * FACTOR * tokens.n_experts * tokens.of()[0] / count).repeat(len(got), 1)
    wrong, name = {"not_times_ranks": right / n}, "the gradient of probabilities_TE"
    return explained(got, right, wrong, MISTAKES, name, TOLERANCE)
