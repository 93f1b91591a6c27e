"""Times work on the GPU, without the time that the host needs to start it.

A time is measured between two events on the GPU. The GPU first sleeps for as long as the host needs
to start all calls of a sample, so that it then runs them without a pause. If a library or the lab's
function waits for the GPU in each call, no sleep is long enough, and its time includes the host's
time.

Calls use several sets of buffers, which together are larger than the second-level cache.
"""

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import Pair

if TYPE_CHECKING:
    import torch

CACHES = 4  # the size of a benchmark's buffers, as a multiple of the second-level cache
SAMPLE_SECONDS = 10e-3
# A GPU's queue holds about 1,000 kernels, and some optimizers start more than ten in a step.
MOST_CALLS = 50
BYTES_PER_SECOND, FLOP_PER_SECOND = 4e12, 5e14  # estimates, to choose how many calls to time
SLEEP_CYCLES, MOST_CYCLES = 10_000_000, 640_000_000  # about 5 ms and a third of a second


def device(small: bool) -> "torch.device":
    import torch

    return torch.device("cpu" if small else "cuda")


def randoms(count: int, small: bool, dtype: str = "float32") -> "torch.Tensor":
    """Return normal random numbers."""
    import torch

    return torch.randn(count, device=device(small), dtype=getattr(torch, dtype))


def sets(make: Callable[[], Callable[[], Any]], size: int, small: bool) -> list[Callable[[], Any]]:
    """Return calls on several sets of buffers of `size` bytes, which together exceed the cache."""
    if small:
        return [make()]
    import torch

    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return [make() for _ in range(max(1, math.ceil(CACHES * cache / size)))]


def timed(
    calls: list[Callable[[], Any]], seconds: float, small: bool
) -> Callable[[], float | None]:
    """Return a function that makes the calls in turn, and returns the GPU seconds of one call.

    `seconds` is an estimate for one call. A rehearsal makes each call once, and measures nothing.
    """
    if small:

        def once() -> None:
            for call in calls:
                call()

        return once

    count = max(len(calls), min(math.ceil(SAMPLE_SECONDS / seconds), MOST_CALLS))
    cycles = SLEEP_CYCLES

    def sample() -> float:
        nonlocal cycles
        while True:
            taken, paused = measured(list(itertools.islice(itertools.cycle(calls), count)), cycles)
            if not paused or cycles >= MOST_CYCLES:
                return taken / count
            cycles *= 2

    return sample


def measured(calls: list[Callable[[], Any]], cycles: int) -> tuple[float, bool]:
    """Let the GPU sleep for this number of cycles, and then run the calls.

    Return the seconds of the calls, and True if the GPU may have paused between them because the
    host had not started the next one. If it ever pauses, it also pauses before the last call,
    because the calls are alike. It has then finished all others when the host has started the last.
    """
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    others = torch.cuda.Event()
    torch.cuda._sleep(cycles)
    start.record()
    for call in calls[:-1]:
        call()
    others.record()
    calls[-1]()
    paused = others.query()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3, paused


def same(got: "torch.Tensor", right: "torch.Tensor", tolerance: float) -> None:
    import torch

    torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


def copying(size: int, small: bool) -> list[Callable[[], Any]]:
    """Return calls that copy: they read size/2 bytes and write size/2 bytes."""

    def make() -> Callable[[], Any]:
        import torch

        source = randoms(size // 8, small)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return sets(make, size, small)


def pair(
    ours: Callable[[], Callable[[], Any]],
    theirs: Callable[[], Callable[[], Any]] | None,
    size: int,
    small: bool,
    flop: float = 0.0,
) -> Pair:
    """Return both sides, timed. `ours` and `theirs` each return a call that uses new buffers.

    Without `theirs`, the peer is a copy.

    Args:
        size: the bytes that a call must move.
        flop: the FLOP of a call, if they take longer than moving the bytes.
    """
    peer = copying(size, small) if theirs is None else sets(theirs, size, small)
    seconds = max(size / BYTES_PER_SECOND, flop / FLOP_PER_SECOND)
    return Pair(timed(sets(ours, size, small), seconds, small), timed(peer, seconds, small))
