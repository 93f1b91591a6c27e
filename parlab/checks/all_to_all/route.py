"""Exercise `route`: a queue that is filled in a loop is the reference for slots."""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from parlab.checks.all_to_all._experts import slots
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, has_parts
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    softmax_over_tokens=(
        "the softmax is over the tokens. Take it over the experts, so that the probabilities of "
        "each token add up to 1"
    ),
    renormalized=(
        "the gates of each token add up to 1. Use the probabilities of the softmax over all "
        "experts, and do not divide them by their sum"
    ),
    no_gradient="the gates have no gradient, so the router cannot learn. Do not detach them",
    token_by_token=(
        "the queue has all choices of token 0 first, then all of token 1. First put the first "
        "choices of all tokens into it, then all second ones"
    ),
    queue_for_each_choice=(
        "first and second choices have separate queues, so two tokens get the same slot of an "
        "expert. Continue the expert's queue with the second choices"
    ),
)
CASES = {  # tokens, experts, k, capacity, dtype of the scores, and a number to add to them
    "one expert for each token": (11, 4, 1, 2, torch.float64, 0),
    "two experts for each token": (12, 5, 2, 3, torch.float32, 0),
    "all experts for each token": (5, 3, 3, 4, torch.float64, 0),
    "one slot": (6, 3, 2, 1, torch.float64, 0),
    "more slots than tokens": (7, 4, 2, 50, torch.float64, 0),
    "no tokens": (0, 4, 2, 3, torch.float64, 0),
    "one expert": (3, 1, 1, 2, torch.float64, 0),
    "scores above 1000": (8, 4, 2, 3, torch.float64, 1000),
    "scores below −1000": (8, 4, 3, 3, torch.float64, -1000),
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


@check_of(MISTAKES, ranks=1)
def route(check: Check) -> str:
    """Compare experts, gates, slots, and the gradient of the scores."""
    with check.trial() as trial:
        for _, (tokens, n_experts, k, capacity, dtype, shift) in trial.cases(CASES):
            generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
            scores = torch.randn(tokens, n_experts, generator=generator, dtype=torch.float64)
            scores[:, 0] += 1  # popular, so that second choices compete with first ones
            _case(trial, (scores + shift).to(dtype), k, capacity)
        scores = torch.zeros(4, 3)
        wrong_k = {f"k = {k} with 3 experts": (scores, k, 2) for k in (4, 0)}
        require_refusals(trial, wrong_k, "k")
        no_slots = {f"a capacity of {capacity}": (scores, 2, capacity) for capacity in (0, -1)}
        require_refusals(trial, no_slots, "capacity")
    return (
        "experts, gates, and slots for 1 to all experts a token, with dropped choices and without; "
        "the gates' gradient reaches all scores of a token"
    )


def _case(trial: Trial, scores: Tensor, k: int, capacity: int) -> None:
    trial_scores = scores.clone().requires_grad_()
    got = trial.run(trial_scores, k, capacity)
    trial.require(
        lambda: has_parts(got, "experts_Tk, gates_Tk, slots_Tk"),
        lambda: unchanged("`scores_TE`", trial_scores, scores),
        lambda: _chosen(got, scores, k),
        lambda: _slots(got[2], scores, k, capacity),
        lambda: _gradient(got[1], trial_scores, k),
    )


def _chosen(got: tuple[Any, Any, Any], scores: Tensor, k: int) -> Finding | None:
    """Compare the experts and their gates."""
    right, other = scores.softmax(-1).topk(k), scores.softmax(0).topk(k)
    wrong_experts = {"softmax_over_tokens": other.indices}
    wrong = {
        "softmax_over_tokens": other.values,
        "renormalized": right.values / right.values.sum(-1, keepdim=True),
    }
    return explained(got[0], right.indices, wrong_experts, MISTAKES, "experts_Tk") or explained(
        got[1], right.values, wrong, MISTAKES, "gates_Tk", TOLERANCE[scores.dtype]
    )


def _slots(got: Any, scores: Tensor, k: int, capacity: int) -> Finding | None:
    experts_Tk, tokens = scores.topk(k).indices, range(len(scores))
    columns = [slots(column, capacity) for column in experts_Tk.split(1, 1)]
    wrong = {
        "token_by_token": slots(experts_Tk, capacity, product(tokens, range(k))),
        "queue_for_each_choice": torch.cat(columns, 1),
    }
    return explained(got, slots(experts_Tk, capacity), wrong, MISTAKES, "slots_Tk")


def _gradient(gates: Tensor, scores: Tensor, k: int) -> Finding | None:
    if not gates.requires_grad:
        return MISTAKES.no_gradient()
    weights = torch.arange(1.0, k + 1, dtype=scores.dtype)
    (gates * weights).sum().backward()
    other = scores.detach().requires_grad_()
    (other.softmax(-1).topk(k).values * weights).sum().backward()
    name = "the gradient of scores_TE"
    return equal(scores.grad, other.grad, name, TOLERANCE[scores.dtype])
