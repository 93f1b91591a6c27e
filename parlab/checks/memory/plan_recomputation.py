"""Exercise `plan_recomputation`: plans are compared with all others."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.costs.recomputation import Segment, all_plans, peak_bytes, recomputed_flops

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
CHEAP, DEAR, LAST = Segment(1, 11, 12, 1), Segment(1, 11, 12, 100), Segment(1, 4, 15, 30)
EXACT = {  # a chain, and a budget that one plan meets exactly
    "segments that differ in FLOPs alone": ([CHEAP, DEAR, LAST], 27),
    "the same segments in another order": ([DEAR, CHEAP, LAST], 27),
    "no need to recompute even a cheap segment": ([CHEAP, LAST], 26),
    "three cheap segments or a dear one": ([Segment(1, 31, 32, 4), *[CHEAP] * 3, LAST], 49),
    "the largest peak before the last segment": (
        [Segment(1, 5, 6, 9), Segment(2, 8, 30, 5), Segment(1, 3, 4, 2)],
        31,
    ),
    "a peak at a segment that is recomputed": ([Segment(2, 8, 20, 5), LAST], 20),
}
GB = 2**30
LONG = {"40 segments of three kinds": (20, 19)}  # segments of two kinds, and a last one
Chain = list[Segment]
Plan = Sequence[bool]


@check_of(MISTAKES, ranks=1)
def plan_recomputation(check: Check) -> str:
    """Compare plans for many budgets with all possible plans. Also check plans of a long chain."""
    with check.trial() as trial:
        for _, size in trial.cases(SMALL):
            chain = drawn(trial.draw, size)
            require_best(trial, chain, budgets(chain, trial.draw))
            smallest = peak_bytes(chain, [False] * size)
            require_best(trial, chain, [smallest])
            for budget in (smallest - 1, 0):
                what = f"a budget of {budget} bytes (the smallest that works is {smallest})"
                plan = partial(check.function, chain, budget)
                require_refusal(trial, plan, what=what, names=smallest)
        for _, (chain, budget) in trial.cases(EXACT):
            require_best(trial, chain, [budget])
        for _, counts in trial.cases(LONG):
            require_best_of_kinds(trial, counts)
    return "the fewest FLOPs within each budget"


def drawn(draw: Random, size: int) -> Chain:
    """Draw a chain whose plans often hold the same number of bytes.

    Plans of long chains rarely have equal FLOPs. In short chains, FLOPs are small, and can be 0.
    """
    most_flops, chain = 10**6 if size > 4 else 6, []
    for _ in range(size):
        start = 10 * draw.randrange(1, 6)
        kept = start + 10 * draw.randrange(30)
        chain.append(Segment(start, kept, kept + draw.randrange(150), draw.randrange(most_flops)))
    return chain


def budgets(chain: Chain, draw: Random) -> list[int]:
    """Return budgets that are peaks of plans, a little more, and more than enough.

    There are so many that no greedy order finds the best plan for all of them in a chain of eight
    segments.
    """
    peaks = sorted({peak_bytes(chain, keep) for keep in all_plans(chain)})
    some = draw.sample(peaks, min(24, len(peaks)))
    return [*some, some[-1] + 1, peaks[-1], 2 * peaks[-1]]


def require_best(trial: Trial, chain: Chain, limits: list[int]) -> None:
    """Require plans that fit and recompute as few FLOPs as the best ones."""
    given = list(chain)
    got, situation = [], trial.situation
    for budget in limits:
        trial.situation = f"{situation}, a budget of {budget} bytes"
        got.append(trial.run(given, budget))
    trial.situation = situation
    trial.require(
        lambda: unchanged("`segments`", given, chain),
        *(partial(a_plan, plan, len(chain)) for plan in got),
        lambda: are_best(chain, limits, got),
    )


def require_best_of_kinds(trial: Trial, counts: tuple[int, int]) -> None:
    """Require the best plans of a chain whose last segment has by far the largest peak.

    Only the sum of all other bytes then matters, and so does only the number of recomputed segments
    of each kind. Only one plan is the best, and it needs the whole budget, to the byte.
    """
    more = [GB // 2 + trial.draw.randrange(GB) for _ in counts]
    kinds = [Segment(GB, 2 * GB + more[0], 9 * GB, 3 * 10**12 + more[1])]
    kinds.append(Segment(GB, 3 * GB + more[1], 9 * GB, 5 * 10**12 + more[0]))
    chain = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    trial.draw.shuffle(chain)
    chain.append(Segment(GB, 5 * GB, 12 * GB, 10**12))
    all_kept = peak_bytes(chain, [True] * len(chain))
    for share in (0.4, 0.7):
        plans = (
            [(n * k.flops, n * (k.kept - GB)) for n, k in zip(numbers, kinds, strict=True)]
            for numbers in product(*(range(count + 1) for count in counts))
        )
        sums = [[sum(column) for column in zip(*plan, strict=True)] for plan in plans]
        least, freed = min(one for one in sums if one[1] >= (1 - share) * all_kept)
        budget = all_kept - freed
        got = trial.run(list(chain), budget)
        trial.require(lambda: a_plan(got, len(chain)), lambda: good(chain, budget, got, least))


def a_plan(got: Any, length: int) -> Finding | None:
    if found := has_type(got, list | tuple, "a list of booleans"):
        return found
    if len(got) != length:
        return observed(f"the plan has {len(got)} entries, expected one for each segment")
    odd = [entry for entry in got if entry not in (True, False)]
    return observed(f"the plan contains {odd[0]!r}, expected True or False") if odd else None


def are_best(chain: Chain, limits: list[int], got: list[Plan]) -> Finding | None:
    """Return None for the best plans, the mistake that explains all, or the first bad plan."""

    def flops_by(plan_of: Callable[[Chain, int], Plan]) -> list[int]:
        return [recomputed_flops(chain, plan_of(chain, budget)) for budget in limits]

    least = flops_by(best)
    first = next(filter(None, map(partial(good, chain), limits, got, least)), None)
    if first is None:
        return None
    mistakes = {
        "inputs_forgotten": partial(best, peak=peak_without_inputs),
        "recomputation_forgotten": partial(best, peak=held_bytes),
        "greedy": greedy,
    }
    found = [recomputed_flops(chain, plan) for plan in got]
    named = (key for key, plan_of in mistakes.items() if flops_by(plan_of) == found != least)
    return the_only(MISTAKES, named) or first


def good(chain: Chain, budget: int, got: Plan, least: int) -> Finding | None:
    peak, flops = peak_bytes(chain, got), recomputed_flops(chain, got)
    if peak > budget:
        return observed(f"the plan needs {peak} bytes, and the budget is {budget}")
    if flops > least:
        return observed(
            f"for a budget of {budget} bytes, it recomputes {flops} FLOPs, and {least} would do"
        )
    return None


def best(chain: Chain, budget: int, peak: Callable[..., int] = peak_bytes) -> Plan:
    """Return the best plan whose `peak` is within the budget. If none is, recompute everything."""
    fitting = (plan for plan in all_plans(chain) if peak(chain, plan) <= budget)
    return min(fitting, key=partial(recomputed_flops, chain), default=(False,) * len(chain))


def held_bytes(chain: Chain, keep: Plan) -> int:
    """Return the bytes that the segments hold when the backward pass starts."""
    return sum(s.kept if kept else s.input for s, kept in zip(chain, keep, strict=True))


def peak_without_inputs(chain: Chain, keep: Plan) -> int:
    """Return the peak if recomputed segments kept nothing."""
    return peak_bytes([s._replace(input=0) for s in chain], keep)


def greedy(chain: Chain, budget: int) -> Plan:
    """Recompute segments, in the order of FLOPs per freed byte, until the plan fits the budget."""
    keep = [True] * len(chain)
    for i in sorted(range(len(chain)), key=lambda i: flops_per_freed_byte(chain[i])):
        if peak_bytes(chain, keep) <= budget:
            break
        keep[i] = False
    return keep


def flops_per_freed_byte(segment: Segment) -> float:
    return segment.flops / (segment.kept - segment.input + 1e-9)
