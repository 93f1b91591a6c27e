"""Makes the course's own checks work on the ranks of a page.

A check in the lab watches a call from a second thread, which a page does not have. Here, the hub
ends a call at a deadlock, and the page ends it at its deadline. The files in `replaced` replace
files of the course.
"""

import time
from collections.abc import Callable
from typing import Any

import _hub
from mpi4py import MPI

from parlab.checks.base import collective, watchdog
from parlab.checks.base.watchdog import Ended


def prepare() -> None:
    """Replace functions of the course with the page's versions, before a check runs."""
    watchdog.run_watched = run_watched
    watchdog._LIBRARIES = ("/lib/",)  # Pyodide's `sysconfig` writes //lib
    # Ranks that wait in a check must not look busy, or the hub would not find a deadlock.
    collective._wait = MPI.Request.Wait


def run_watched(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    comm: MPI.Intracomm,
    seconds: float,
    messages: Callable[[], int] = lambda: 0,
    standstill: Any = None,
) -> Ended:
    """Call `function(*arguments)`. It is stuck if no rank can continue, or after `seconds`."""
    until = time.monotonic() + seconds
    _hub.take_part(comm.rank, comm.size)
    _hub.set_inside(True)
    _hub.set_limit(seconds)
    try:
        return Ended("returned", function(*arguments))
    except MPI.Deadlock as stuck:
        return Ended("stuck", line=_place(stuck))
    except KeyboardInterrupt as interrupt:
        if time.monotonic() < until:
            raise  # the reader has stopped the run
        return Ended("stuck", line=_place(interrupt))
    except MPI.Exception as error:
        return Ended("raised", error=str(error), line=_place(error))
    except (Exception, SystemExit) as error:
        if watchdog.is_stub(error):
            return Ended("unfinished", error=str(error))
        return Ended("raised", error=f"{type(error).__name__}: {error}", line=_place(error))
    finally:
        _hub.set_limit(0)
        _hub.set_inside(False)


def _place(error: BaseException) -> str:
    return watchdog._place_of_traceback(error.__traceback__)
