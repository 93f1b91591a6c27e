"""Exercise `plan_recomputation`: plans are compared with all others, then run on a GPT."""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from parlab import memory, models, segments
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.refusals import numbers_in, require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.memory._plans import (
    Plan,
    best,
    budgets,
    drawn,
    greedy,
    held_bytes,
    least_of_kinds,
    long_chain,
    peak_without_inputs,
)
from parlab.costs.recomputation import Segment, peak_bytes, recomputed_flops

MISTAKES = Mistakes(
    inputs_forgotten=(
        "some plans need more than the budget: a recomputed segment still holds its input, which "
        "these plans do not count"
    ),
    recomputation_forgotten=(
        "some plans need more than the budget: they count only what is held when the backward pass "
        "starts. Also count each segment's `peak` when the backward pass gets there"
    ),
    greedy=(
        "some plans recompute more than necessary: choosing one segment after the other, by FLOPs "
        "per freed byte, does not always give the best plan. Compare combinations"
    ),
)
SMALL = {"eight segments": 8, "four segments": 4, "one segment": 1}
CHEAP, DEAR, LAST = Segment(1, 11, 12, 10), Segment(1, 11, 12, 100), Segment(1, 4, 15, 30)
EXACT = {  # a chain, and a budget that one plan meets exactly
    "segments that differ in FLOPs alone": ([CHEAP, DEAR, LAST], 27),
    "the same segments in another order": ([DEAR, CHEAP, LAST], 27),
    "a peak at a segment that is recomputed": ([Segment(2, 8, 20, 5), LAST], 20),
}
KINDS = {"40 segments of four kinds": (14, 13, 12)}  # segments of each kind, and a last one


@check_of(MISTAKES, ranks=1)
def plan_recomputation(check: Check) -> str:
    """Compare plans for many budgets with all plans, and measure one."""
    with check.trial() as trial:
        for _, size in trial.cases(SMALL):
            chain = drawn(trial.draw, size)
            require_best(trial, chain, budgets(chain, trial.draw))
            require_smallest(trial, chain)
        for _, (chain, budget) in trial.cases(EXACT):
            require_best(trial, chain, [budget])
        for _, counts in trial.cases(KINDS, again=False):
            require_best_of_kinds(trial, counts)
        for _, layers in trial.cases({"a GPT of two layers": 2}, again=False):
            measured_on_gpt(trial, layers)
    return "the fewest FLOPs within each budget, and a GPT's step has the peak that was planned"


def require_best(trial: Trial, chain: list[Segment], limits: list[int]) -> list[Plan]:
    """Require plans that fit and recompute as few FLOPs as the best ones; return them."""
    given = list(chain)
    got = [trial.run(given, budget) for budget in limits]
    trial.require(
        *(partial(a_plan, plan, chain, given) for plan in got),
        lambda: are_best(chain, limits, got),
    )
    return got


def a_plan(got: Any, chain: list[Segment], given: list[Segment]) -> Finding | None:
    if found := has_type(got, list | tuple, "a list of booleans"):
        return found
    if given != chain:
        return COMMON.argument_changed(name="`segments`")
    if len(got) != len(chain):
        return observed(f"the plan has {len(got)} entries, expected one for each segment")
    odd = next((entry for entry in got if entry not in (True, False)), None)
    return None if odd is None else observed(f"the plan contains {odd!r}, expected True or False")


def are_best(chain: list[Segment], limits: list[int], got: list[Plan]) -> Finding | None:
    """Return None for the best plans, the mistake that gives all plans, or the first bad one."""
    pairs = list(zip(limits, got, strict=True))
    bad = (good(chain, b, plan, recomputed_flops(chain, best(chain, b))) for b, plan in pairs)
    first = next(filter(None, bad), None)
    if first is None:
        return None
    mistakes = {
        "inputs_forgotten": partial(best, peak=peak_without_inputs),
        "recomputation_forgotten": partial(best, peak=held_bytes),
        "greedy": greedy,
    }
    for key, plan_of in mistakes.items():
        if all(alike(chain, plan, plan_of(chain, budget)) for budget, plan in pairs):
            return getattr(MISTAKES, key)()
    return first


def alike(chain: list[Segment], plan: Plan, other: Plan) -> bool:
    return all(cost(chain, plan) == cost(chain, other) for cost in (recomputed_flops, peak_bytes))


def good(chain: list[Segment], budget: int, got: Plan, least: int) -> Finding | None:
    peak, flops = peak_bytes(chain, got), recomputed_flops(chain, got)
    if peak > budget:
        return observed(f"the plan needs {peak} bytes, and the budget is {budget}")
    if flops > least:
        return observed(
            f"for a budget of {budget} bytes, it recomputes {flops} FLOPs, and {least} would do"
        )
    return None


def require_smallest(trial: Trial, chain: list[Segment]) -> None:
    """Require a plan for the smallest budget, and below it a ValueError that names it."""
    smallest = peak_bytes(chain, [False] * len(chain))
    require_best(trial, chain, [smallest])
    for budget in (smallest - 1, 0):
        missing = f"no plan fits into {budget} bytes, but it raises nothing. Raise a ValueError"
        text = require_refusal(
            trial, lambda: trial.check.function(chain, budget), observed(missing)
        )
        not_named = (
            f"no plan fits into {budget} bytes, and the ValueError does not name the smallest "
            f"budget that works, {smallest} bytes: {text!r}"
        )
        trial.require(lambda: None if smallest in numbers_in(text) else observed(not_named))


def require_best_of_kinds(trial: Trial, counts: tuple[int, ...]) -> None:
    """Require the best plans of a chain that has too many plans to try them all."""
    chain = long_chain(trial.draw, counts)
    for share in (0.4, 0.7):
        budget = int(share * peak_bytes(chain, [True] * len(chain)))
        given = list(chain)
        got = trial.run(given, budget)
        trial.require(
            lambda: a_plan(got, chain, given),
            lambda: good(chain, budget, got, least_of_kinds(chain, budget)),
        )


def measured_on_gpt(trial: Trial, layers: int) -> None:
    """Require that a step under the plan has the peak that was planned, and fits."""
    model = models.GPT(models.GPTConfig(sequence_length=32, hidden_size=32, layers=layers))
    tokens, targets = torch.arange(128).view(2, 2, 32)
    functions = segments.of_gpt(model, targets)
    x = segments.embedded(model, tokens).detach()
    recompute = partial(checkpoint, use_reentrant=True)
    profile = segments.measured(functions, x, model, recompute)
    most = peak_bytes(profile, [True] * len(profile))
    (keep,) = require_best(trial, profile, [int(0.6 * most)])
    segments.zero_gradients(model)
    with memory.Peak() as peak:
        segments.run(functions, keep, x.detach().requires_grad_(), recompute).backward()
    text = f"the peak of a step is {peak.bytes} bytes, expected {0.6 * most:.0f}"
    trial.require(lambda: None if peak.bytes <= 0.65 * most else observed(text))
