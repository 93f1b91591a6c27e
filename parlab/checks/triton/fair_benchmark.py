"""Exercise `fair_benchmark`."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.kernels.simulated_gpu import Event, SimulatedGPU

MISTAKES = Mistakes(
    no_warm_up=(
        "the first timed step of {name!r} is its step {number}, but `warm_up` is {warm_up}. The "
        "first steps create states and compile kernels, so take them before you time any"
    ),
    not_synchronized=(
        "the clock is read while the GPU still works, so the time of a step of {name!r} is that of "
        "a launch, or includes earlier work. Call `synchronize()` before each reading"
    ),
    steps_together=(
        "{count} steps run between two readings of the clock, so their time is not that of one "
        "step. Take the warm-up steps first, and read the clock before and after each other step"
    ),
    one_after_the_other=(
        "{name!r} and {other!r} do not take turns. The GPU gets slower, which counts against the "
        "one that is timed later. In each round, time one step of each optimizer"
    ),
    shared_parameters=(
        "{name!r} and {other!r} get the same parameters. Call `make_parameters()` for each "
        "optimizer"
    ),
    mean="the mean of the times counts interrupted steps. Return their median",
)
TOLERANCE = 1e-6  # of times that are converted to float32
CASES = {  # seconds of each optimizer, rounds, warm-up, and how much slower the GPU gets
    "two optimizers, 9 rounds, 2 steps of warm-up": ({"a": 2e-3, "b": 3e-3}, 9, 2, 0.5),
    "three optimizers, 6 rounds, 1 step": ({"x": 4e-3, "y": 1e-3, "z": 2e-3}, 6, 1, 2.0),
    "one optimizer, 5 rounds, 4 steps": ({"only": 1e-3}, 5, 4, 0.0),
}


@dataclass(frozen=True)
class Interval:
    """The events between two readings of the clock."""

    start: Event
    end: Event
    inside: list[Event]

    @property
    def steps(self) -> list[str]:
        return [event.name for event in self.inside if event.kind == "step"]

    @property
    def seconds(self) -> float:
        return self.end.time - self.start.time


@check_of(MISTAKES, ranks=1)
def fair_benchmark(check: Check) -> str:
    """Check what happens between readings of the clock, on a simulated GPU."""
    with check.trial() as trial:
        for _, (optimizers, rounds, warm_up, slower) in trial.cases(CASES):
            names, first = list(optimizers), len(optimizers) * warm_up
            gpu = SimulatedGPU({first + 1, first + 2 + trial.draw.randrange(3)}, slower)
            pace = trial.draw.uniform(0.8, 1.25)
            makers = {name: gpu.optimizer(name, pace * s) for name, s in optimizers.items()}
            got = trial.run(
                makers, gpu.make_parameters, rounds, warm_up, gpu.clock, gpu.synchronize
            )
            # A function may also time the warm-up, and leave out these times.
            timed = timed_steps(gpu.events)[-rounds * len(names) :]
            trial.require(
                lambda: single_steps(timed),
                lambda: own_parameters(gpu.events, names),
                lambda: all_timed(timed, names, rounds),
                lambda: warmed_up(gpu.events, timed, names, warm_up),
                lambda: waits(timed),
                lambda: takes_turns(timed, names),
                lambda: medians(got, timed, names),
            )
    return "warmed up, synchronized, and in turns; the median of single steps of each optimizer"


def timed_steps(events: list[Event]) -> list[Interval]:
    places = [i for i, event in enumerate(events) if event.kind == "clock"]
    found = [Interval(events[i], events[j], events[i + 1 : j]) for i, j in pairwise(places)]
    return [interval for interval in found if interval.steps]


def own_parameters(events: list[Event], names: list[str]) -> Finding | None:
    """Require that each optimizer is made once, with its own parameters."""
    made = [event for event in events if event.kind == "optimizer"]
    if sorted(event.name for event in made) != sorted(names):
        return observed(f"these optimizers are made: {[e.name for e in made]}, expected {names}")
    known = [id(event.parameters) for event in events if event.kind == "parameters"]
    for i, event in enumerate(made):
        if id(event.parameters) not in known:
            return observed(f"{event.name!r} does not get a list that `make_parameters()` returns")
        for other in made[:i]:
            if other.parameters is event.parameters:
                return MISTAKES.shared_parameters(name=other.name, other=event.name)
    return None


def all_timed(timed: list[Interval], names: list[str], rounds: int) -> Finding | None:
    for name in names:
        if (count := sum(interval.steps == [name] for interval in timed)) != rounds:
            return observed(
                f"{count} steps of {name!r} are timed by two calls of `clock()`, expected {rounds}"
            )
    return None


def single_steps(timed: list[Interval]) -> Finding | None:
    for interval in timed:
        if created := {event.kind for event in interval.inside} & {"parameters", "optimizer"}:
            return observed(
                f"a time includes the creation of {' and '.join(sorted(created))}. Create "
                "everything before you time"
            )
        if len(interval.steps) > 1:
            return MISTAKES.steps_together(count=len(interval.steps))
    return None


def warmed_up(
    events: list[Event], timed: list[Interval], names: list[str], warm_up: int
) -> Finding | None:
    for name in names:
        first = next(interval.start for interval in timed if interval.steps == [name])
        before = events[: next(i for i, event in enumerate(events) if event is first)]
        number = sum(event.kind == "step" and event.name == name for event in before) + 1
        if number <= warm_up:
            return MISTAKES.no_warm_up(name=name, number=number, warm_up=warm_up)
    return None


def waits(timed: list[Interval]) -> Finding | None:
    for interval in timed:
        if interval.start.busy or interval.end.busy:
            return MISTAKES.not_synchronized(name=interval.steps[0])
    return None


def takes_turns(timed: list[Interval], names: list[str]) -> Finding | None:
    order = [interval.steps[0] for interval in timed]
    for i in range(0, len(order), len(names)):
        turn = order[i : i + len(names)]
        if missing := [name for name in names if name not in turn]:
            return MISTAKES.one_after_the_other(name=turn[0], other=missing[0])
    return None


def medians(got: Any, timed: list[Interval], names: list[str]) -> Finding | None:
    if finding := has_type(got, Mapping, "a dict of seconds by name"):
        return finding
    if sorted(got) != sorted(names):
        return observed(f"the result has the names {sorted(got)}, expected {sorted(names)}")
    for name in names:
        times = sorted(interval.seconds for interval in timed if interval.steps == [name])
        value = got[name]
        if finding := has_type(value, int | float, "a number of seconds", repr(name)):
            return finding
        # Of an even number of times, accept the lower or the upper one in the middle, too.
        low, high = statistics.median_low(times), statistics.median_high(times)
        if low * (1 - TOLERANCE) <= value <= high * (1 + TOLERANCE):
            continue
        if close(value, statistics.mean(times), TOLERANCE):
            return MISTAKES.mean()
        return observed(f"{name!r} is {value:.6g} s, expected the median, {high:.6g} s")
    return None
