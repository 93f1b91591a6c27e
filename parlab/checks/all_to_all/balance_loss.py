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
    own_tokens=(
        "this is the loss of this rank's own tokens. Take f and P over the tokens of all ranks"
    ),
    losses_averaged=(
        "this is the mean of the losses that ranks compute from their own tokens. First take f and "
        "P over the tokens of all ranks, and then multiply them"
    ),
    half_own="only one of f and P is over the tokens of all ranks. Both must be",
    mean_of_means=(
        "the mean over the ranks is taken as if they had equally many tokens. Add up sums and "
        "numbers of tokens, and then divide"
    ),
    not_divided=(
        "the loss is N or N² times what is right: f or P adds up the ranks' means without dividing "
        "by N, or the loss is multiplied by N. Only the gradient is N times larger"
    ),
    factor_forgotten="the factor E, the number of experts, is missing",
    tokens_for_choices=(
        "the loss is k times what is right: f is a share of all choices, and each token makes k "
        "of them"
    ),
    first_choices="f has only the first choices: count all of `experts_Tk`",
    chosen_again="f has the most probable experts: count those in `experts_Tk`",
    probabilities_counted="f is the mean probability, like P: count the choices in `experts_Tk`",
    tokens_sent=(
        "it sends {got} bytes for {tokens} tokens and {experts} experts. Send sums for each "
        "expert, not a number for each token"
    ),
    no_gradient="the loss has no gradient: an all-reduce is invisible to autograd",
    not_times_ranks=(
        "the gradient of `probabilities_TE` is the derivative of the loss, so the mean over the "
        "ranks is N times too small. Multiply it by the number of ranks"
    ),
    times_ranks_twice=(
        "the gradient of `probabilities_TE` is N² times the derivative of the loss. Multiply it by "
        "N only once"
    ),
    own_shares_in_gradient=(
        "the gradient of `probabilities_TE` has f of this rank's own tokens. Take f over the "
        "tokens of all ranks"
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

    def means(self, ranks: slice = slice(None)) -> Tensor:
        """P over the tokens of some ranks."""
        return torch.cat(self.probabilities[ranks]).mean(0)

    def shares(self, ranks: slice = slice(None)) -> Tensor:
        """f over the tokens of some ranks."""
        return share(torch.cat(self.experts[ranks]), self.n_experts)


def share(experts: Tensor, n_experts: int) -> Tensor:
    counts = torch.bincount(experts.flatten(), minlength=n_experts)
    return counts / counts.sum()


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
    right = tokens.n_experts * tokens.shares() @ tokens.means()
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
    e, f, p = tokens.n_experts, tokens.shares(), tokens.means()
    ranks = [slice(r, r + 1) for r in range(len(tokens.experts))]
    own_f, own_p = tokens.shares(ranks[rank]), tokens.means(ranks[rank])
    yield "own_tokens", e * own_f @ own_p
    losses = [e * tokens.shares(one) @ tokens.means(one) for one in ranks]
    yield "losses_averaged", torch.stack(losses).mean()
    yield "half_own", e * own_f @ p
    yield "half_own", e * f @ own_p
    means_f = torch.stack([tokens.shares(one).nan_to_num() for one in ranks]).mean(0)
    means_p = torch.stack([tokens.means(one).nan_to_num() for one in ranks]).mean(0)
    yield from (("mean_of_means", e * a @ b) for a, b in ((means_f, means_p), (f, means_p)))
    yield "mean_of_means", e * means_f @ p
    yield "factor_forgotten", f @ p
    k = tokens.experts[0].shape[1]
    yield "tokens_for_choices", k * e * f @ p
    first = share(torch.cat(tokens.experts)[:, :1], e)
    yield "first_choices", e * first @ p
    for count in {1, k}:
        again = torch.cat(tokens.probabilities).topk(count).indices
        yield "chosen_again", e * share(again, e) @ p
    yield "probabilities_counted", e * p @ p
    for times in (len(ranks), len(ranks) ** 2):
        yield "not_divided", times * e * f @ p


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
    n, e, count = trial.size, tokens.n_experts, sum(map(len, tokens.experts))
    right = (n * FACTOR * e * tokens.shares() / count).repeat(len(got), 1)
    own_shares = tokens.shares(slice(trial.rank, trial.rank + 1))
    wrong = {
        "not_times_ranks": right / n,
        "times_ranks_twice": right * n,
        "own_shares_in_gradient": (n * FACTOR * e * own_shares / count).expand_as(got),
    }
    name = "the gradient of probabilities_TE"
    return explained(got, right, wrong, MISTAKES, name, TOLERANCE)
