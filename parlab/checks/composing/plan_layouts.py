"""Exercise `plan_layouts`: plans for predictions that the check makes up."""

import math
from itertools import pairwise
from random import Random
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.costs.layouts import possible
from parlab.layouts import Cluster, Layout, Link, Model

MISTAKES = Mistakes(
    impossible=(
        "it considers ({layout}), which is impossible: dp · tp · pp must be {devices} devices, "
        "tp must divide {heads} heads, pp must divide {layers} layers, and dp · micro_batch must "
        "divide a batch of {batch}. Test that before"
    ),
    too_large="({layout}) does not fit: it needs {need} bytes, and a device has {memory:.12g}",
    not_sorted=(
        "({one}), which takes {seconds:g} s, comes before ({other}), which takes {less:g} s. Sort "
        "by increasing seconds"
    ),
)
LINK = Link.of(1e-6, 1e9)
SIZES = {  # layers, heads, batch, nodes, devices per node
    "on 8 devices of 2 nodes": (12, 8, 24, 2, 4),
    "on 12 devices of 3 nodes": (6, 12, 36, 3, 4),
    "on 6 devices, for 9 layers, 8 heads, and a batch of 10": (9, 8, 10, 1, 6),
    "on 4 devices, which divide only the heads": (3, 4, 5, 1, 4),
    "on one device": (3, 4, 6, 1, 1),
    # No layout is possible for these:
    "on 7 devices, for 8 layers, 4 heads, and a batch of 10": (8, 4, 10, 1, 7),
    "on 6 devices, for 4 layers, 4 heads, and a batch of 8": (4, 4, 8, 2, 3),
}


@check_of(MISTAKES, ranks=1)
def plan_layouts(check: Check) -> str:
    """Compare plans with all layouts, for predictions that have no pattern."""
    with check.trial() as trial:
        for _, (layers, heads, batch, nodes, devices) in trial.cases(SIZES):
            model = Model(layers, 24, heads, 32, 100, batch)
            made_up = Predictions(trial.draw, model, nodes * devices)
            needs = sorted(made_up.needs.values())

            def plan(memory: float) -> Any:
                cluster = Cluster(nodes, devices, memory, 1e9, LINK, LINK)
                return check.function(model, cluster, made_up.memory, made_up.seconds)

            half = needs[len(needs) // 2] if needs else 0
            for memory in (1e9, half, int(half), needs[0]) if needs else ():
                got = trial.run_function(plan, memory)
                trial.require(lambda: _form(got), lambda: made_up.judged(got, memory))
            least = f" (the smallest need is {needs[0]})" if needs else ""
            for memory in (needs[0] - 1, 0) if needs else (10**9,):
                what = f"a memory of {memory} bytes{least}" if needs else "a model of these sizes"
                smallest = math.ceil(needs[0]) if needs else ""
                require_refusal(trial, lambda: plan(memory), what=what, names=smallest)
                trial.require(lambda: made_up.judged([], 0))
    return "all possible layouts that fit, fastest first, and the smallest need if none fits"


class Predictions:
    """Random numbers for each possible layout of a model.

    Impossible layouts get small numbers, so that a planner that forgets a condition returns them.
    """

    def __init__(self, draw: Random, model: Model, devices: int) -> None:
        layouts = list(possible(model, devices))
        needs, times = draw.sample(range(9_999, 99_999), len(layouts)), range(999, 9_999)
        self.needs = {layout: need + 0.25 for layout, need in zip(layouts, needs, strict=True)}
        self.times = dict(zip(layouts, draw.sample(times, len(layouts)), strict=True))
        self.times |= dict.fromkeys(layouts[:2], 4_000)  # equal, because layouts have no `<`
        # Large, so that some layout fits if a planner forgets one kind of bytes.
        self.states = draw.randrange(6_000, 9_000)
        self.requested: list[Layout] = []
        self.sizes = {"heads": model.heads, "layers": model.layers, "batch": model.batch}
        self.sizes["devices"] = devices

    def memory(self, model: Model, layout: Layout) -> dict[str, float]:
        self.requested.append(layout)
        return {"states": self.states, "others": self.needs.get(layout, 5_000) - self.states}

    def seconds(self, model: Model, layout: Layout, cluster: Cluster) -> float:
        self.requested.append(layout)
        return self.times.get(layout, 5_000) / 1_000

    def judged(self, got: list[Layout], memory: float) -> Finding | None:
        """Require all layouts that fit, once each and sorted, and predictions for no others."""
        for layout in (*self.requested, *got):
            if layout not in self.needs:
                return MISTAKES.impossible(layout=layout, **self.sizes)
        for layout in got:
            if self.needs[layout] > memory:
                return MISTAKES.too_large(layout=layout, need=self.needs[layout], memory=memory)
        for layout, need in self.needs.items():
            if need <= memory and got.count(layout) != 1:
                return observed(
                    f"({layout}) is in the list {got.count(layout)} times, expected once: it needs "
                    f"{need} bytes, and a device has {memory:.12g}"
                )
        for one, other in pairwise(got):
            times = self.times[one], self.times[other]
            if times[0] > times[1]:
                seconds, less = (time / 1_000 for time in times)
                return MISTAKES.not_sorted(one=one, other=other, seconds=seconds, less=less)
        return None


def _form(got: Any) -> Finding | None:
    if found := has_type(got, list | tuple, "a list of layouts"):
        return found
    odd = (has_type(one, Layout, "a Layout", "an entry of the list") for one in got)
    return next(filter(None, odd), None)
