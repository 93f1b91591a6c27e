"""Defines, finds, and measures benchmarks."""

import importlib
import pkgutil
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

RESAMPLES = 2000
OWN_MODULES = ("__main__", "gpu", "harness", "machine", "report", "worker")


class Pair(NamedTuple):
    """Two functions that do the same work once. A function may return its own measurement."""

    reference: Callable[[], Any]
    peer: Callable[[], Any]


@dataclass(frozen=True)
class Benchmark:
    """A comparison: the arguments of `benchmark`, its `name`, `topic`, and `set_up` function."""

    name: str
    topic: str
    set_up: Callable[..., Pair]
    peer: str
    work: str
    target: float | None
    ranks: int
    rounds: int
    calls: int
    warm_up: int
    seconds: float
    unit: str = "s"
    gpu: bool = False


class Samples(NamedTuple):
    """The times of one call on both sides, for each round."""

    reference: list[float]
    peer: list[float]


_benchmarks: dict[str, Benchmark] = {}


def benchmark(
    *,
    peer: str,
    work: str,
    target: float | None,
    ranks: int,
    rounds: int = 30,
    calls: int = 1,
    warm_up: int = 3,
    seconds: float = 300.0,
    unit: str = "s",
    gpu: bool = False,
) -> Callable[[Callable[..., Pair]], Callable[..., Pair]]:
    """Return a decorator for a function that sets up both sides of a benchmark (see `benchmarks`).

    Args:
        peer: the name of the side with which ours is compared.
        work: the work of both sides: sizes, ranks, backend.
        target: the largest acceptable ratio; None if the ratio is only reported.
        ranks: the number of MPI ranks to run on; 0 for a single process.
        rounds: the number of samples of each side.
        calls: the number of calls in a sample: many if a call takes microseconds.
        warm_up: rounds before the first sample.
        seconds: the time limit of the whole benchmark.
        unit: `s`, `bytes` if both functions return bytes, or an empty text for plain numbers.
        gpu: True if it needs a GPU. Its function takes `small`, to rehearse the work on the CPU.
    """

    def register(set_up: Callable[..., Pair]) -> Callable[..., Pair]:
        name, topic = set_up.__name__, set_up.__module__.rpartition(".")[2]
        if name in _benchmarks:
            raise ValueError(f"two benchmarks are named {name}: rename the one in {topic}.py")
        settings = (peer, work, target, ranks, rounds, calls, warm_up, seconds, unit, gpu)
        _benchmarks[name] = Benchmark(name, topic, set_up, *settings)
        return set_up

    return register


def all_benchmarks() -> list[Benchmark]:
    """Return all benchmarks of this folder, in the order of their files' names."""
    import benchmarks

    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__))
    return [bench for name in names if name not in OWN_MODULES for bench in of_topic(name)]


def of_topic(topic: str) -> list[Benchmark]:
    """Return the benchmarks of one file. Other files, which may need more, are not imported."""
    importlib.import_module(f"benchmarks.{topic}")
    return [bench for bench in _benchmarks.values() if bench.topic == topic]


def select(names: list[str]) -> list[Benchmark]:
    """Return the benchmarks with these names or topics, or all. Raises ValueError if unknown."""
    known = all_benchmarks()
    unknown = set(names) - {b.name for b in known} - {b.topic for b in known}
    if unknown:
        raise ValueError(f"no benchmark named {', '.join(sorted(unknown))}: see --list")
    return [b for b in known if not names or {b.name, b.topic} & set(names)]


def measure(
    bench: Benchmark, together: Callable[[], None], slowest: Callable[[float], float]
) -> Samples:
    """Sample both sides in turn. Collective over the ranks, if there are any.

    Args:
        together: a function that returns on all ranks at the same time.
        slowest: a function that returns the largest of all ranks' numbers.
    """
    pair = bench.set_up()
    samples = Samples([], [])
    for number in range(-bench.warm_up, bench.rounds):
        sides = list(zip(pair, samples, strict=True))
        for work, taken in sides if number % 2 == 0 else reversed(sides):
            together()
            seconds = slowest(_time(work, bench.calls))
            if number >= 0:
                taken.append(seconds)
    return samples


def _time(work: Callable[[], Any], calls: int) -> float:
    own: list[float] = []
    start = time.perf_counter()
    for _ in range(calls):
        measured = work()
        if isinstance(measured, float | int):
            own.append(float(measured))
    total = sum(own) if own else time.perf_counter() - start
    return total / calls


def ratio(samples: Samples) -> float:
    """Return our median divided by the peer's median."""
    return statistics.median(samples.reference) / statistics.median(samples.peer)


def spread(samples: Samples) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles of the ratio over rounds that are drawn again at random."""
    draw = random.Random(0)
    rounds = list(zip(*samples, strict=True))
    ratios = sorted(
        ratio(Samples(*map(list, zip(*draw.choices(rounds, k=len(rounds)), strict=True))))
        for _ in range(RESAMPLES)
    )
    return ratios[RESAMPLES // 20], ratios[-RESAMPLES // 20]
