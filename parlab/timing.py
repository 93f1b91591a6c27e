"""Measures the seconds of functions that run on all ranks, so that they can be compared.

    seconds = timing.median_seconds({"ours": ours, "library": library}, comm, rounds=12)
    print(f"ours takes {seconds['ours'] / seconds['library']:.2f} times as long")

The functions take turns, so that other load on the machine slows all of them equally. Each call
starts on all ranks at the same time, and the slowest rank counts.

With PARLAB_ROUNDS=1 in the environment, each function is called once. Tests of whole labs set it,
because they compare no times.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

Functions = Mapping[str, Callable[[], object]]


def median_seconds(
    functions: Functions, comm: "MPI.Intracomm", rounds: int, warm_up: int = 2
) -> dict[str, float]:
    """Return the median of the seconds of each function. Collective over the ranks of `comm`.

    Args:
        functions: the functions to measure, by name, in the same order on every rank.
        comm: communicator over the ranks that run the functions.
        rounds: how many times each function is measured.
        warm_up: the number of calls before these, which do not count.
    """
    spent = _spent(functions, comm, rounds, warm_up)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def fastest_seconds(
    functions: Functions, comm: "MPI.Intracomm", rounds: int, warm_up: int = 1
) -> dict[str, float]:
    """Return the seconds of the fastest call of each function. See also `median_seconds`.

    Use it on an emulated network, where a busy machine can make a call slower but never faster.
    """
    spent = _spent(functions, comm, rounds, warm_up)
    return {name: min(seconds) for name, seconds in spent.items()}


def relative_to(library: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each other function, divided by the seconds of `library`."""
    return {name: own / seconds[library] for name, own in seconds.items() if name != library}


def at_most(rounds: int) -> int:
    """Return `rounds`, or PARLAB_ROUNDS if that is less."""
    return min(rounds, int(os.environ.get("PARLAB_ROUNDS", rounds)))


def _spent(
    functions: Functions, comm: "MPI.Intracomm", rounds: int, warm_up: int
) -> dict[str, list[float]]:
    if "PARLAB_ROUNDS" in os.environ:
        rounds, warm_up = at_most(rounds), 0
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(warm_up + rounds):
        for name, function in functions.items():
            comm.Barrier()
            start = time.perf_counter()
            function()
            _synchronize()
            spent[name].append(max(comm.allgather(time.perf_counter() - start)))
    return {name: seconds[warm_up:] for name, seconds in spent.items()}


def _synchronize() -> None:
    """Wait for this rank's GPU, if it uses one, because a call returns before its kernel ends."""
    torch = sys.modules.get("torch")  # lab 01 begins without it
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
