"""The clock that all ranks of a machine share, and sleeping on it."""

import ctypes
import time

# Counts from the machine's start: the same on all ranks of a machine, and as in `Timeline`.
now = time.perf_counter


# Linux may let a sleeper sleep 50 µs longer, so that it wakes several at once: not this thread, and
# none that it starts from here on (prctl(2), PR_SET_TIMERSLACK, in ns).
_PR_SET_TIMERSLACK = 29
ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)

# A system may wake a sleeper so much later than it asked for (s), with a core free.
LATE = 100e-6
_SHORTEST = 1e-6


def sleep_until(moment: float) -> float:
    """Sleep until `now()` is `moment`; not at all where it is past.

    Returns how late the system woke this thread (s); 0 where there was nothing to sleep for.
    """
    if moment <= now():
        return 0.0
    while (left := moment - now()) > 0:
        time.sleep(max(left - LATE, _SHORTEST))
    return now() - moment


def nap(since: float) -> None:
    """Sleep a little, while others have to come first: the longer, the longer that takes already.

    Not `sched_yield`: a rank that yields its core to one that computes gets it back after a time
    slice, some milliseconds; one that wakes gets it at once.
    """
    time.sleep(max((now() - since) / 16, _SHORTEST))


def compute(seconds: float) -> None:
    """Stand for a computation that takes `seconds`: sleep, so that it needs no core.

    Raises ValueError for a time that is negative.
    """
    if not seconds >= 0:
        raise ValueError(f"a computation takes 0 s or more, not {seconds!r}")
    sleep_until(now() + seconds)
