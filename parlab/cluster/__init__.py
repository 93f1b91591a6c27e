"""Ranks for a notebook: `cluster.start()`, then `%%px` cells that run on every rank.

A `%%px` cell has a deadline (`%%px --timeout SECONDS`, 60 by default) and never freezes the
notebook. At the deadline, after an error that leaves ranks waiting, or when you press stop, it
shows the line where each rank is stuck and frees the ranks with their variables intact.
"""

import atexit
import os
import sys
from typing import Any

from parlab import progress
from parlab.cluster import gpus
from parlab.cluster.errors import (
    ClusterError,
    DeadlineExceeded,
    RankDied,
    RankError,
    RankFailed,
    RankInterrupted,
)
from parlab.cluster.session import STARTING, Session
from parlab.cluster.stop_button import StopButton, keep_early_presses
from parlab.costs.networks import Network
from parlab.runtime import loopback

__all__ = [
    "ClusterError",
    "DeadlineExceeded",
    "RankDied",
    "RankError",
    "RankFailed",
    "RankInterrupted",
    "current",
    "output",
    "restart",
    "start",
    "stop",
]

NO_RANKS = "Interrupted. No ranks are running any more. Run cluster.start() to start new ones."

ALL_LOST = (
    "The earlier ranks have ended, and with them the imports and variables of earlier `%%px` "
    "cells. Rerun the cells that you need."
)

_current: Session | None = None


def start(n: int | None = None, profile: str | None = None, network: Network | None = None) -> None:
    """Start ranks, make `%%px` run on them, and print what was started.

    Args:
        n: number of ranks. By default, as many as the network has. Without a network, one for each
            GPU if torch can use several, else 4.
        profile: an ipyparallel profile that starts ranks elsewhere. `parlab profile slurm` and
            `parlab profile ssh` write one. While a batch job waits, its state is printed.
        network: the network that `group` emulates (see `parlab.network`). The ranks use the CPU.

    Ranks that are already running are stopped first. All ranks end with the notebook's kernel.

    Raises:
        ValueError: `n` is not a positive integer, or `network` contradicts `n` or `profile`.
        ClusterError: the ranks did not start. The message says why.
    """
    global _current
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ValueError(f"cluster.start(n): n is a number of ranks, 1 or more, not {n!r}")
    if network is not None:
        n = _ranks_of(network, n, profile)
    if sys.flags.optimize > 1:  # removes docstrings, which ipyparallel needs when it is imported
        raise ClusterError(
            f"PYTHONOPTIMIZE={sys.flags.optimize} is set for this kernel, and ipyparallel does not "
            "work with it. Unset it, and start JupyterLab again"
        )
    if not loopback.works():
        raise ClusterError(f"no ranks can start, because {loopback.REMEDY}")
    earlier = _current and _current.names
    stop()
    n = n or gpus.default_ranks()
    keep_early_presses()
    with StopButton() as button:
        _current = Session(n, profile, network)
        _register_magics(_current)
    if button.presses:
        stop()
        raise RankInterrupted(NO_RANKS)
    _current.ready(print)
    print(_current.ranks.description or gpus.description(_current.ranks.devices, network))
    if earlier and (earlier.imports or earlier.variables):
        print(ALL_LOST)
    if progress_line := progress.line():
        print(progress_line)


def _ranks_of(network: Any, n: int | None, profile: str | None) -> int:
    if not isinstance(network, Network):
        raise ValueError(f"cluster.start(network=…): a parlab.network.Network, not {network!r}")
    if profile is not None:
        raise ValueError(
            "cluster.start: use `profile` for a real network or `network` for an emulated one, "
            "but not both"
        )
    if n not in (None, network.ranks):
        raise ValueError(f"cluster.start({n}): the network has {network.ranks} ranks ({network})")
    return network.ranks


def restart() -> None:
    """Replace all ranks with new ones, and print what was started. All variables are lost."""
    session = current()
    with StopButton() as button:  # so that pressing stop does not interrupt this halfway
        session.replace()
    if button.presses:
        raise RankInterrupted(STARTING)
    session.ready(print)
    on = f" on the emulated network, {session.network}" if session.network else ""
    new, them = ("1 new rank", "it") if session.n == 1 else (f"{session.n} new ranks", "them")
    print(f"{new}{on}. The imports of your cells ran again on {them}")


def stop() -> None:
    """End the ranks, if any."""
    global _current
    with StopButton() as button:  # so that pressing stop does not interrupt this halfway
        session, _current = _current, None
        if session is not None:
            session.stop()
    if button.presses:
        raise RankInterrupted(NO_RANKS)


def current() -> Session:
    """Return the notebook's ranks: `.n`, and ipyparallel's `.client` and `.view`.

    Raises ClusterError if no ranks were started.
    """
    if _current is None:
        raise ClusterError("there are no ranks: run cluster.start() first")
    return _current


def output(rank: int) -> str:
    """Return all that `rank` printed in the last `%%px` cell, even if it was too long to show.

    If that is more than twelve million characters, return only the first and the last of them.
    """
    session = current()
    if rank not in range(session.n):
        raise ValueError(f"there are ranks 0 to {session.n - 1}, not {rank!r}")
    if session.last is None:
        raise ClusterError("no %%px cell has run yet")
    return session.last.outputs().get(rank, {}).get("stdout", "")


def _register_magics(session: Session) -> None:
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        from parlab.cluster.magics import RankMagics

        shell.register_magics(RankMagics(shell, session))


def _px(line: str = "", cell: str = "") -> None:
    """Explain that `%%px` needs ranks. RankMagics replaces this function when ranks start."""
    from IPython.core.error import UsageError

    raise UsageError("There are no ranks. Run cluster.start(4) first.")


def _register_px() -> None:
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None and "px" not in shell.magics_manager.magics["cell"]:
        shell.register_magic_function(_px, "line_cell", "px")


def _forget() -> None:
    """Forget the ranks in a forked child, because they belong to its parent."""
    global _current
    _current = None


_register_px()
atexit.register(stop)
os.register_at_fork(after_in_child=_forget)
