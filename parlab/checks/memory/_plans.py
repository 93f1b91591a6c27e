"""Chains of segments, and the plans that a right or wrong answer finds for them."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from random import Random

from parlab.costs.recomputation import Segment, all_plans, peak_bytes, recomputed_flops

Plan = Sequence[bool]
GB = 2**30


def drawn(draw: Random, size: int) -> list[Segment]:
    """Draw a chain in which plans often hold equally many bytes.

    Plans of long chains rarely have equal FLOPs. In short ones, FLOPs are small, and can be 0.
    """
    most_flops = 10**6 if size > 4 else 6
    values, chain = Random(draw.getrandbits(32)), []
    for _ in range(size):
        start = 10 * values.randrange(1, 6)
        kept = start + 10 * values.randrange(30)
        peak = kept + values.randrange(150)
        chain.append(Segment(start, kept, peak, values.randrange(most_flops)))
    return chain


def long_chain(draw: Random, counts: Sequence[int]) -> list[Segment]:
    """Draw a chain with segments of as many kinds as there are counts, and a last one.

    Its last segment has by far the largest peak, so only the sum of all other bytes matters.
    """
    kinds = []
    for i in range(len(counts)):
        more = GB // 2 + draw.randrange(GB)
        kinds.append(Segment(GB, (2 + i) * GB + more, 9 * GB, (3 + 2 * i) * 10**12 + more))
    chain = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    draw.shuffle(chain)
    return [*chain, Segment(GB, 5 * GB, 12 * GB, 10**12)]


def least_of_kinds(chain: list[Segment], budget: int) -> int:
    """Return the fewest FLOPs for a `long_chain`, by the number of each kind that is recomputed."""
    *others, last = chain
    kinds = sorted(set(others))
    too_many = held_bytes(others, [True] * len(others)) + last.peak - budget
    return min(
        sum(n * kind.flops for n, kind in zip(numbers, kinds, strict=True))
        for numbers in product(*(range(others.count(kind) + 1) for kind in kinds))
        if sum(n * (k.kept - k.input) for n, k in zip(numbers, kinds, strict=True)) >= too_many
    )


def budgets(chain: list[Segment], draw: Random) -> list[int]:
    """Return budgets that are peaks of plans, a little more, and more than enough.

    They are so many that for a chain of eight segments, no greedy order gives the best plan for
    each of them.
    """
    peaks = sorted({peak_bytes(chain, keep) for keep in all_plans(chain)})
    some = draw.sample(peaks, min(24, len(peaks)))
    return [*some, some[-1] + 1, peaks[-1], 2 * peaks[-1]]


def best(
    chain: list[Segment], budget: int, peak: Callable[..., int] = peak_bytes
) -> tuple[bool, ...]:
    """Return the best plan whose `peak` is within the budget; all recomputed if there is none."""
    fitting = (plan for plan in all_plans(chain) if peak(chain, plan) <= budget)
    return min(fitting, key=partial(recomputed_flops, chain), default=(False,) * len(chain))


def held_bytes(chain: Sequence[Segment], keep: Plan) -> int:
    """Return what the segments hold when the backward pass starts."""
    return sum(s.kept if kept else s.input for s, kept in zip(chain, keep, strict=True))


def peak_without_inputs(chain: Sequence[Segment], keep: Plan) -> int:
    """Return the peak if recomputed segments kept nothing."""
    return peak_bytes([s._replace(input=0) for s in chain], keep)


def greedy(chain: list[Segment], budget: int) -> Plan:
    """Recompute one more segment, by its FLOPs per freed byte, until the budget fits."""
    keep = [True] * len(chain)
    for i in sorted(range(len(chain)), key=lambda i: flops_per_freed_byte(chain[i])):
        if peak_bytes(chain, keep) <= budget:
            break
        keep[i] = False
    return tuple(keep)


def flops_per_freed_byte(segment: Segment) -> float:
    return segment.flops / (segment.kept - segment.input + 1e-9)
