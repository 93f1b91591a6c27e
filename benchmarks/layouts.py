"""Lab 10's layout planner against measurements on an emulated cluster of eight ranks.

The planner predicts the times of twelve layouts, which then really run: with real messages and
collectives on emulated links, and computations that sleep (`parlab.layout_runs`).

- `planner_pick`: the measured time of the layout that the planner prefers, divided by the time of
  the fastest layout.
- `planner_order`: 1 / Spearman's rank correlation of predicted and measured times. The peer is a
  perfect order, whose correlation is 1.

An emulated call takes 3 ms. Otherwise, the time of the real exchange on a busy machine would count.
Layouts whose predicted times are within 4 % are left out, because no measurement could order them.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks import Pair, benchmark
from parlab.layouts import Cluster, Layout, Link, Model

LAYOUTS = 12
APART = 1.04  # the smallest ratio of the predicted times of two neighbors
LEAST_CORRELATION = 0.9
MODEL = Model(layers=4, hidden=64, heads=8, sequence=64, vocabulary=512, batch=16)
CLUSTER = Cluster(
    nodes=2,
    devices_per_node=4,
    memory=2.2e6,
    flop_per_second=500e6,
    inside=Link.of(alpha=0.5e-3, bandwidth=20e6),
    between=Link.of(alpha=2e-3, bandwidth=4e6),
    call=3e-3,
)
WORK = f"{LAYOUTS} layouts of a GPT on 2 emulated nodes of 4 ranks, steps of 0.4 to 1.1 s"


class Rounds:
    """Predicted and measured times. Each round is measured once, for both sides of a benchmark."""

    def __init__(self) -> None:
        from parlab_staff.course.references import definitions

        lab = definitions("10_composing")
        plans = lab["plan_layouts"](
            MODEL, CLUSTER, lab["predict_layout_memory"], lab["predict_step_seconds"]
        )
        self.layouts: list[Layout] = []
        self.predicted: list[float] = []
        for layout in plans:
            seconds = lab["predict_step_seconds"](MODEL, layout, CLUSTER)
            if not self.predicted or seconds > APART * self.predicted[-1]:
                self.layouts.append(layout)
                self.predicted.append(seconds)
        del self.layouts[LAYOUTS:], self.predicted[LAYOUTS:]
        assert len(self.layouts) == LAYOUTS, f"only {len(self.layouts)} layouts are far apart"
        self.measured: list[list[float]] = []
        self.calls: Counter[str] = Counter()

    def side(self, name: str, value: Callable[[list[float]], float]) -> Callable[[], float]:
        """Return a function that returns the value of the next round's measured times."""

        def next_value() -> float:
            from parlab.layout_runs import measured_seconds

            self.calls[name] += 1
            if len(self.measured) < self.calls[name]:
                self.measured.append(measured_seconds(MODEL, self.layouts, CLUSTER, rounds=2))
            return value(self.measured[self.calls[name] - 1])

        return next_value

    def inverse_correlation(self, measured: list[float]) -> float:
        from parlab.layout_runs import rank_correlation

        return 1 / max(rank_correlation(self.predicted, measured), 1e-3)


planned: Any = functools.partial(benchmark, ranks=8, rounds=3, warm_up=0, work=WORK)


@planned(peer="the fastest layout", target=1.1)
def planner_pick() -> Pair:
    rounds = Rounds()
    return Pair(rounds.side("ours", lambda measured: measured[0]), rounds.side("peer", min))


@planned(peer="a perfect order", target=1 / LEAST_CORRELATION, unit="")
def planner_order() -> Pair:
    rounds = Rounds()
    return Pair(rounds.side("ours", rounds.inverse_correlation), lambda: 1.0)
