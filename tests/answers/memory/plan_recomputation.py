"""Answers to `plan_recomputation`."""

from parlab.costs.recomputation import Segment, peak_bytes
from parlab_staff.answers import Answers

answers = Answers("plan_recomputation")
reference = answers.reference()

TEST = "if held + segment.peak > budget:\n                continue"
LAST = "return list(min(best.values())[1])"
RAISE = "if not best:\n"
TEXT = 'f"no plan fits into {budget} bytes: the smallest budget is {smallest}"'

for mistake, name, *edits in (
    (None, "true_recomputes", (LAST, "return [not k for k in min(best.values())[1]]")),
    ("inputs_forgotten", "nothing_held", ("else segment.input", "else 0")),
    (
        "recomputation_forgotten",
        "start_of_the_backward_pass",
        (TEST, "pass"),
        (RAISE, "best = {held: v for held, v in best.items() if held <= budget}\n    " + RAISE),
    ),
    ("wrong_type", "letters", (LAST, "return ''.join('RK'[k] for k in min(best.values())[1])")),
    (None, "without_the_last", (LAST, LAST + "[:-1]")),
    (None, "no_number", (TEXT, '"no plan fits"')),
    (
        "not_refused",
        "all_recomputed_anyway",
        (RAISE, RAISE + "        return [False] * len(segments)\n"),
    ),
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


@answers.wrong("greedy")
def cheapest_bytes_first(segments, budget):
    order = one_after_the_other(lambda s: s.flops / (s.kept - s.input + 1e-9))
    return order(segments, budget)


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


@answers.wrong(None)
def in_parts_of_the_budget(segments, budget):
    """Count in units of 1/10,000 of the budget, so plans that just fit are missed."""
    unit = max(1, budget // 10_000)
    units = [Segment(-(-s.input // unit), -(-s.kept // unit), s.peak, s.flops) for s in segments]
    units = [u._replace(peak=-(-u.peak // unit)) for u in units]
    if peak_bytes(units, [False] * len(units)) > budget // unit:
        return reference(segments, budget)
    return reference(units, budget // unit)


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


answers.right_edit(
    "smallest_in_words", (TEXT, 'f"{smallest} bytes are the smallest budget, not {budget}"')
)

answers.edit(
    None,
    "peak_of_the_last_segment",
    (TEST, TEST.replace("if held", "if segment is segments[-1] and held")),
    (RAISE, "if peak_bytes(segments, [False] * len(segments)) > budget:\n"),
    says="the budget is",
)
