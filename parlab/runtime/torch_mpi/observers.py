"""Reports calls on a process group that do not pass through torch's dispatcher."""

import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
G = TypeVar("G")
R = TypeVar("R")

# Called after each observed method, with the group, the method's name, its arguments, the result,
# and the start and end (seconds, time.perf_counter).
Observer = Callable[[Any, str, tuple[Any, ...], Any, float, float], None]
observers: list[Observer] = []


def observed(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """Report each call of `method` to the `observers`. Without any, this takes almost no time."""

    @functools.wraps(method)
    def call(self: G, *args: P.args, **kwargs: P.kwargs) -> R:
        if not observers:
            return method(self, *args, **kwargs)
        start = time.perf_counter()
        result = method(self, *args, **kwargs)
        end = time.perf_counter()
        for observer in observers:
            observer(self, method.__name__, args, result, start, end)
        return result

    return call
