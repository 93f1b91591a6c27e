"""Answers to `plan_recomputation`."""

import heapq
from itertools import count, product

from parlab.costs.recomputation import Segment, peak_bytes, recomputed_flops
from parlab_staff.answers import Answers

answers = Answers("plan_recomputation")

TEST = "if held + segment.peak > budget:\n                continue"
TOTAL = "held + (segment.kept if keep else segment.input)"
BEST = "longer[total] = min(longer.get(total, found), found)"
LAST = "return list(min(best.values())[1])"
RAISE = "if not best:\n"
TEXT = 'f"no plan fits into {budget} bytes: the smallest budget is {smallest}"'

for mistake, name, *edits in (
    ("inverted", "true_recomputes", (LAST, "return [not k for k in min(best.values())[1]]")),
    ("inputs_forgotten", "nothing_held", ("else segment.input", "else 0")),
    (
        "recomputation_forgotten",
        "start_of_the_backward_pass",
        (TEST, "pass"),
        (RAISE, "best = {held: v for held, v in best.items() if held <= budget}\n    " + RAISE),
    ),
    ("smallest_not_named", "no_number", (TEXT, '"no plan fits"')),
    ("smallest_not_named", "the_budget", (TEXT, 'f"no plan fits into {budget} bytes"')),
    (
        "smallest_not_named",
        "sum_of_inputs",
        ("peak_bytes(segments, [False] * len(segments))", "sum(s.input for s in segments)"),
    ),
    (
        "refusal_missing",
        "all_recomputed_anyway",
        (RAISE, RAISE + "        return [False] * len(segments)\n"),
    ),
    (None, "fewest_bytes", (LAST, "return list(best[min(best)][1])")),
    (None, "most_bytes", (LAST, "return list(best[max(best)][1])")),
    (None, "worst_of_equal_bytes", (BEST, BEST.replace("min", "max"))),
    (None, "kept_for_peak", (TEST, TEST.replace("peak", "kept"))),
    (None, "fewest_segments", ("(0 if keep else segment.flops)", "(not keep)")),
    ("wrong_type", "only_the_flops", (LAST, "return min(best.values())[0]")),
    (None, "names", (LAST, "return ['keep' if k else 'recompute' for k in min(best.values())[1]]")),
    (
        "argument_changed",
        "segments_used_up",
        ("return list", "segments.clear()\n    return list"),
    ),
):
    answers.edit(mistake, name, *edits)


def one_after_the_other(order):
    """Recompute one more segment, in an order, until the budget fits."""

    def plan(segments, budget):
        keep = [True] * len(segments)
        for i in sorted(range(len(segments)), key=lambda i: order(segments[i])):
            if peak_bytes(segments, keep) <= budget:
                return keep
            keep[i] = False
        if peak_bytes(segments, keep) > budget:
            raise ValueError(f"at least {peak_bytes(segments, keep)} bytes")
        return keep

    return plan


@answers.wrong("greedy", says="by FLOPs per freed byte")
def cheapest_bytes_first(segments, budget):
    order = one_after_the_other(lambda s: s.flops / (s.kept - s.input + 1e-9))
    return order(segments, budget)


@answers.wrong("greedy", says="by freed bytes")
def most_bytes_first(segments, budget):
    return one_after_the_other(lambda s: s.input - s.kept)(segments, budget)


@answers.wrong("greedy", says="by position")
def first_segments(segments, budget):
    return one_after_the_other(lambda s: 0)(segments, budget)


@answers.wrong(None)
def greedy_with_a_second_pass(segments, budget):
    """Recompute greedily, and then keep again what still fits."""
    keep = cheapest_bytes_first(segments, budget)
    for i in sorted(range(len(segments)), key=lambda i: -segments[i].flops):
        if not keep[i] and peak_bytes(segments, [*keep[:i], True, *keep[i + 1 :]]) <= budget:
            keep[i] = True
    return keep


@answers.wrong(None)
def square_root(segments, budget):
    """Keep every n-th segment, for the smallest n that fits."""
    for n in range(1, len(segments) + 2):
        keep = [i % n == 0 for i in range(len(segments))]
        if peak_bytes(segments, keep) <= budget:
            return keep
    return [False] * len(segments)


@answers.wrong("finished_segments_counted")
def a_plain_knapsack(segments, budget):
    """Choose kept segments so that the bytes held by all others and the peak of each fit."""

    def peak(keep):
        held = [s.kept if k else s.input for s, k in zip(segments, keep, strict=True)]
        return max(sum(held) - h + s.peak for s, h in zip(segments, held, strict=True))

    fitting = [k for k in product((True, False), repeat=len(segments)) if peak(k) <= budget]
    if not fitting:
        return [False] * len(segments)
    return list(min(fitting, key=lambda keep: recomputed_flops(segments, keep)))


@answers.right
def with_a_frontier(segments, budget):
    """Keep only plans that no other plan beats in both bytes and FLOPs; keep back-pointers."""
    front = [(0, 0, None)]
    for segment in segments:
        grown = []
        for held, flops, path in front:
            if held + segment.peak <= budget:
                grown.append((held + segment.input, flops + segment.flops, (path, False)))
                grown.append((held + segment.kept, flops, (path, True)))
        front = []
        for entry in sorted(grown, key=lambda e: e[:2]):
            if not front or entry[1] < front[-1][1]:
                front.append(entry)
    if not front:
        least = max(s.peak + sum(t.input for t in segments[:i]) for i, s in enumerate(segments))
        raise ValueError(f"the budget of {budget:,} bytes is too small, use {least:,} bytes")
    path, plan = front[-1][2], []
    while path is not None:
        path, keep = path
        plan.insert(0, keep)
    return plan


@answers.right
def backwards(segments, budget):
    """Go through the bytes that may still be held, from the last segment, with recursion."""
    from functools import cache

    @cache
    def fewest(i, held):
        if i == len(segments):
            return 0, ()
        s = segments[i]
        if held + s.peak > budget:
            return float("inf"), ()
        kept, recomputed = fewest(i + 1, held + s.kept), fewest(i + 1, held + s.input)
        if kept[0] <= recomputed[0] + s.flops:
            return kept[0], (1, *kept[1])
        return recomputed[0] + s.flops, (0, *recomputed[1])

    flops, plan = fewest(0, 0)
    if len(plan) != len(segments) or flops == float("inf"):
        raise ValueError(f"smallest budget: {peak_bytes(segments, [0] * len(segments))} bytes")
    return plan


answers.right_edit("other_ties", ("for keep in (True, False)", "for keep in (False, True)"))
answers.right_edit(
    "smallest_in_words", (TEXT, 'f"{smallest} bytes are the smallest budget, not {budget}"')
)


@answers.right
def from_the_end(segments: list[Segment], budget: int) -> list[bool]:
    """From the last segment, with the plans that no other beats in bytes and FLOPs."""
    ends = [(0, 0, None)]  # bytes needed, FLOPs, (keep, the rest)
    for s in reversed(segments):
        longer = []
        for need, flops, plan in ends:
            longer.append((max(s.peak, s.kept + need), flops, (True, plan)))
            longer.append((max(s.peak, s.input + need), flops + s.flops, (False, plan)))
        longer.sort(key=lambda end: end[:2])
        smallest = longer[0][0]
        ends = []
        for end in longer:
            # The one that needs least stays in any case: an error names what it needs.
            if not ends or (end[0] <= budget and end[1] < ends[-1][1]):
                ends.append(end)
    need, _, plan = ends[-1]
    if segments and need > budget:
        raise ValueError(f"at least {smallest} bytes")
    result = []
    while plan is not None:
        keep, plan = plan
        result.append(keep)
    return result


@answers.right
def dijkstra(segments: list[Segment], budget: int) -> list[bool]:
    """The first complete plan that is found in the order of FLOPs, with a heap."""
    order = count()
    heap = [(0, next(order), 0, 0, None)]  # FLOPs, order, segment, held, path
    done = set()
    while heap:
        flops, _, i, held, path = heapq.heappop(heap)
        if i == len(segments):
            plan = []
            while path is not None:
                path, keep = path
                plan.append(keep)
            return plan[::-1]
        if (i, held) in done:
            continue
        done.add((i, held))
        s = segments[i]
        if held + s.peak <= budget:
            heapq.heappush(heap, (flops, next(order), i + 1, held + s.kept, (path, True)))
            heapq.heappush(
                heap, (flops + s.flops, next(order), i + 1, held + s.input, (path, False))
            )
    inputs = needed = 0
    for s in segments:
        needed = max(needed, inputs + s.peak)
        inputs += s.input
    raise ValueError(f"{budget} bytes are too few, {needed} are enough")
