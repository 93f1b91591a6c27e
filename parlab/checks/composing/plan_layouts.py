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
    wrong_devices="{layout} has {got} devices, and the cluster has {right}: use all of them",
    heads_undivided="{layout} is impossible: tp = {tp} does not divide {heads} heads",
    layers_undivided="{layout} is impossible: pp = {pp} does not divide {layers} layers",
    batch_undivided=(
        "{layout} is impossible: dp · micro_batch = {rows} does not divide a batch of {batch}"
    ),
    too_large="{layout} does not fit: it needs {need} bytes, and a device has {memory}",
    exact_fit_missing=(
        "{layout} is missing. It needs {need} bytes, and a device has exactly as many, so it fits"
    ),
    one_micro_batch="all layouts have a micro-batch of 1. Others are possible, such as {layout}",
    in_one_node=(
        "layouts with tensor parallelism over several nodes are missing, such as {layout}. They "
        "are possible; their time decides where they come"
    ),
    only_the_fastest="this returns one layout, and {right} fit. Return them all, fastest first",
    slowest_first="the slowest layout comes first. Sort by increasing seconds",
    by_memory="the layouts are sorted by their memory. Sort them by their seconds",
    twice="{layout} is there {count} times",
    refusal_missing=(
        "no layout fits into {memory} bytes, since the smallest need is {right}, but it raises "
        "nothing. Raise a ValueError"
    ),
    impossible_accepted="no layout divides the model, but it raises nothing. Raise a ValueError",
    smallest_not_named=(
        "no layout fits into {memory} bytes, and the ValueError does not state the smallest need, "
        "{right} bytes: {text}"
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
                MISTAKES.impossible_accepted(),
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
            lambda: _possible(got, model, limited),
            predictions.none_odd,
            lambda: _fits(got, right, need, limited),
            lambda: _order(got, right, need, time),
        )
    smallest = need[by_need[0]]
    for memory in (smallest - 1, 0):
        limited = replace(cluster, memory=memory)
        values = {"memory": memory, "right": smallest}
        text = require_refusal(
            trial,
            lambda: trial.check.function(model, limited, *functions),
            MISTAKES.refusal_missing(**values),
        )
        trial.require(
            lambda: (
                None
                if smallest in numbers_in(text)
                else MISTAKES.smallest_not_named(**values, text=repr(text))
            )
        )


def _a_list(got: Any) -> Finding | None:
    if found := has_type(got, list | tuple, "a list of layouts"):
        return found
    odd = next((one for one in got if not isinstance(one, Layout)), None)
    return None if odd is None else observed(f"the list contains {odd!r}, expected a Layout")


def _possible(got: list[Layout], model: Model, cluster: Cluster) -> Finding | None:
    for layout in got:
        values = {"layout": f"({layout})"}
        if layout.devices != cluster.devices:
            return MISTAKES.wrong_devices(got=layout.devices, right=cluster.devices, **values)
        if model.heads % layout.tp:
            return MISTAKES.heads_undivided(tp=layout.tp, heads=model.heads, **values)
        if model.layers % layout.pp:
            return MISTAKES.layers_undivided(pp=layout.pp, layers=model.layers, **values)
        rows = layout.dp * layout.micro_batch
        if layout.micro_batch < 1 or model.batch % rows:
            return MISTAKES.batch_undivided(rows=rows, batch=model.batch, **values)
    layout, count = Counter(got).most_common(1)[0] if got else (None, 1)
    return MISTAKES.twice(layout=f"({layout})", count=count) if count > 1 else None


def _fits(
    got: list[Layout], right: list[Layout], need: dict[Layout, float], cluster: Cluster
) -> Finding | None:
    large = next((layout for layout in got if layout not in right), None)
    if large:
        return MISTAKES.too_large(
            layout=f"({large})", need=need[large], memory=f"{cluster.memory:.0f}"
        )
    missing = [layout for layout in right if layout not in got]
    if not missing:
        return None
    values = {"layout": f"({missing[0]})"}
    if len(missing) == 1 and need[missing[0]] == cluster.memory:
        return MISTAKES.exact_fit_missing(need=need[missing[0]], **values)
    if got == right[:1]:
        return MISTAKES.only_the_fastest(right=len(right))
    if all((layout.micro_batch > 1) == (layout in missing) for layout in right):
        return MISTAKES.one_micro_batch(**values)
    if all((layout.tp > cluster.devices_per_node) == (layout in missing) for layout in right):
        return MISTAKES.in_one_node(**values)
    return observed(f"({missing[0]}) is missing: it is possible and fits")


def _order(
    got: list[Layout], right: list[Layout], need: dict[Layout, float], time: dict[Layout, float]
) -> Finding | None:
    times, sorted_times = ([time[one] for one in layouts] for layouts in (got, right))
    if times == sorted_times:
        return None
    if times == sorted_times[::-1]:
        return MISTAKES.slowest_first()
    if list(got) == sorted(right, key=need.__getitem__):
        return MISTAKES.by_memory()
    place = next(i for i, one in enumerate(times) if one != sorted_times[i])
    return observed(f"layout {place} is ({got[place]}), expected ({right[place]})")
