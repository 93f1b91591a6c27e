"""The clock that all ranks of a machine share, and functions that sleep until a time."""

import ctypes
import time

# Counts from the machine's start, so it is the same on all ranks of a machine and in `Timeline`.
now = time.perf_counter


# By default, Linux may wake a thread 50 µs late, so that it can wake several threads at once. Turn
# this off for this thread and those that it starts later (prctl(2), PR_SET_TIMERSLACK, in ns).
_PR_SET_TIMERSLACK = 29
ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)

# Even if a core is free, the system may wake a thread this much too late (s).
LATE = 100e-6
_MIN_SLEEP = 1e-6


def sleep_until(moment: float) -> float:
    """Sleep until `now()` is `moment`. Do not sleep if that is in the past.

    Return how late the system woke this thread (s), or 0 if it did not sleep.
    """
    if moment <= now():
        return 0.0
    while (left := moment - now()) > 0:
        time.sleep(max(left - LATE, _MIN_SLEEP))
    return now() - moment


def sleep_briefly(since: float) -> None:
    """Sleep while waiting for other ranks, for 1/16 of the time that has passed since `since`.

    This does not use `sched_yield`, because a rank that yields its core to a computing rank gets it
    back only after a time slice of several milliseconds. A rank that wakes up gets it at once.
    """
    time.sleep(max((now() - since) / 16, _MIN_SLEEP))


def compute(seconds: float) -> None:
    """Emulate a computation that takes `seconds`, by sleeping, so that it needs no core.

    Raises ValueError if the time is negative.
    """
    if not seconds >= 0:
        raise ValueError(f"a computation takes 0 s or more, not {seconds!r}")
    sleep_until(now() + seconds)
