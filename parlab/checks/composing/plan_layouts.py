"""Exercise `plan_layouts`: plans by predictions that the check makes up."""

from collections import Counter
from dataclasses import replace
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import numbers_in, require_refusal
from parlab.checks.base.trial import Trial
from parlab.costs.layouts import possible
from parlab.layouts import Cluster, Layout, Link, Model

MISTAKES = Mistakes(
    impossible=(
        "{layout} is impossible: dp · tp · pp must be {devices} devices, tp must divide {heads} "
        "heads, pp must divide {layers} layers, and dp · micro_batch must divide a batch of {batch}"
    ),
    too_large="{layout} does not fit: it needs {need} bytes, and a device has {memory}",
    not_sorted=(
        "layout {place} is {got}, which takes {got_seconds:g} s, expected {right}, which takes "
        "{seconds:g} s. Sort by increasing seconds"
    ),
)
LINK = Link.of(1e-6, 1e9)
SIZES = {  # layers, heads, batch, nodes, devices per node
    "on 8 devices of 2 nodes": (12, 8, 24, 2, 4),
    "on 12 devices of 3 nodes": (6, 12, 36, 3, 4),
    "on 6 devices, for 9 layers, 8 heads, and a batch of 10": (9, 8, 10, 1, 6),
    "on 4 devices, which divide only the heads": (3, 4, 5, 1, 4),
    "on one device": (3, 4, 6, 1, 1),
}
IMPOSSIBLE = {  # layers, heads, batch, nodes, devices per node
    "on 7 devices, for 8 layers, 4 heads, and a batch of 10": (8, 4, 10, 1, 7),
    "on 6 devices, for 4 layers, 4 heads, and a batch of 8": (4, 4, 8, 2, 3),
}


@check_of(MISTAKES, ranks=1)
def plan_layouts(check: Check) -> str:
    """Compare plans with all layouts, for predictions that have no pattern."""
    with check.trial() as trial:
        for _, sizes in trial.cases(SIZES):
            _require_plans(trial, *sizes)
        for _, sizes in trial.cases(IMPOSSIBLE, again=False):
            model, cluster = _described(*sizes)
            made_up = Predictions(trial, model, cluster.devices)
            require_refusal(
                trial,
                lambda: check.function(model, cluster, made_up.memory, made_up.seconds),
                what="a model that no layout divides",
            )
            trial.require(made_up.none_odd)
    return "all possible layouts that fit, fastest first, and the smallest need if none fits"


def _described(
    layers: int, heads: int, batch: int, nodes: int, devices_per_node: int
) -> tuple[Model, Cluster]:
    model = Model(layers, 24, heads, 32, 100, batch)
    return model, Cluster(nodes, devices_per_node, 1e9, 1e9, LINK, LINK)


class Predictions:
    """Random numbers for each possible layout of a model.

    Others get small numbers, so that a planner that forgets a condition returns them. `odd` has
    those that were asked for.
    """

    def __init__(self, trial: Trial, model: Model, devices: int) -> None:
        layouts, draw = list(possible(model, devices)), trial.draw
        self.needs = dict(
            zip(layouts, draw.sample(range(9_999, 99_999), len(layouts)), strict=True)
        )
        self.times = dict(zip(layouts, draw.sample(range(999, 9_999), len(layouts)), strict=True))
        self.times |= dict.fromkeys(layouts[:2], 4_000)  # layouts have no order of their own
        # Large, so that some layout fits if a planner forgets one kind of bytes.
        self.states = draw.randrange(6_000, 9_000)
        self.odd: list[Layout] = []

    def memory(self, model: Model, layout: Layout) -> dict[str, float]:
        need = self._of(self.needs, layout)
        return {"states": self.states, "activations": need - self.states}

    def seconds(self, model: Model, layout: Layout, cluster: Cluster) -> float:
        return self._of(self.times, layout) / 1_000

    def _of(self, numbers: dict[Layout, int], layout: Layout) -> int:
        if layout not in numbers:
            self.odd.append(layout)
        return numbers.get(layout, 5_000)

    def none_odd(self) -> Finding | None:
        """Return None if only possible layouts were asked for."""
        if not self.odd:
            return None
        return observed(f"it predicts for ({self.odd[0]}), which is not possible: test that before")


def _require_plans(trial: Trial, *sizes: int) -> None:
    """Require the plans for several budgets, one of which a layout needs exactly."""
    model, cluster = _described(*sizes)
    predictions = Predictions(trial, model, cluster.devices)
    functions = predictions.memory, predictions.seconds
    need, time = predictions.needs, predictions.times
    by_need = sorted(need, key=need.__getitem__)
    for memory in (1e9, need[by_need[len(by_need) // 2]], need[by_need[0]]):
        limited = replace(cluster, memory=memory)
        right = sorted((one for one in need if need[one] <= memory), key=time.__getitem__)
        got = trial.run(model, limited, *functions)
        trial.require(
            lambda: _a_list(got),
            lambda: _possible(got, need, model, cluster),
            predictions.none_odd,
            lambda: _fits(got, right, need, memory),
            lambda: _order(got, right, time),
        )
    smallest = need[by_need[0]]
    for memory in (smallest - 1, 0):
        limited = replace(cluster, memory=memory)
        text = require_refusal(
            trial,
            lambda: trial.check.function(model, limited, *functions),
            what=f"a memory of {memory} bytes, although the smallest need is {smallest}",
        )
        trial.require(lambda: _named(smallest, text))


def _named(smallest: int, text: str) -> Finding | None:
    if smallest in numbers_in(text):
        return None
    return observed(f"the ValueError does not state the smallest need, {smallest} bytes: {text!r}")


def _a_list(got: Any) -> Finding | None:
    if found := has_type(got, list | tuple, "a list of layouts"):
        return found
    odd = next((one for one in got if not isinstance(one, Layout)), None)
    return None if odd is None else observed(f"the list contains {odd!r}, expected a Layout")


def _possible(
    got: list[Layout], need: dict[Layout, int], model: Model, cluster: Cluster
) -> Finding | None:
    for layout in got:
        if layout not in need:
            sizes = {"heads": model.heads, "layers": model.layers, "batch": model.batch}
            return MISTAKES.impossible(layout=f"({layout})", devices=cluster.devices, **sizes)
    twice = next((layout for layout, count in Counter(got).items() if count > 1), None)
    return observed(f"({twice}) is in the list more than once") if twice else None


def _fits(
    got: list[Layout], right: list[Layout], need: dict[Layout, int], memory: float
) -> Finding | None:
    for layout in got:
        if layout not in right:
            needs = {"need": need[layout], "memory": f"{memory:.0f}"}
            return MISTAKES.too_large(layout=f"({layout})", **needs)
    for layout in right:
        if layout not in got:
            return observed(
                f"({layout}) is missing. It is possible, and fits: it needs {need[layout]} bytes, "
                f"and a device has {memory:.0f}"
            )
    return None


def _order(got: list[Layout], right: list[Layout], time: dict[Layout, int]) -> Finding | None:
    for place, (one, other) in enumerate(zip(got, right, strict=True)):
        if time[one] != time[other]:
            values = {"got_seconds": time[one] / 1000, "seconds": time[other] / 1000}
            return MISTAKES.not_sorted(place=place, got=f"({one})", right=f"({other})", **values)
    return None
