"""The labs' ranks against stock ipyparallel: start, a cell, a deadlock, a restart."""

import atexit
import logging
import os
import time
from typing import Any

from benchmarks import Pair, benchmark

RANKS = 4


def _stock_cluster() -> Any:
    """Start ipyparallel as in its documentation, with settings for root and few cores."""
    import ipyparallel as ipp

    from parlab import mpirun

    os.environ.update(mpirun.environment(RANKS))
    # Stock ipyparallel looks for mpiexec in PATH. Ours knows the folder of the installed wheel.
    folder = os.path.dirname(mpirun.mpiexec())
    if folder not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([folder, os.environ["PATH"]])
    return ipp.Cluster(engines="mpi", n=RANKS, log_level=logging.CRITICAL)


def _start_stock(cluster: Any) -> Any:
    client = cluster.start_and_connect_sync()
    client[:].apply_sync(os.getpid)
    return client


def _stop_stock(cluster: Any, client: Any) -> None:
    client.close()
    cluster.stop_cluster_sync()


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    return InteractiveShell.instance()


@benchmark(
    peer="stock ipyparallel",
    work=f"from nothing to {RANKS} ranks that answer",
    target=0.5,
    ranks=0,
    rounds=7,
    warm_up=1,
)
def cluster_start() -> Pair:
    from parlab.cluster.session import Session

    def ours() -> float:
        start = time.perf_counter()
        session = Session(RANKS, None)
        session.ready()
        seconds = time.perf_counter() - start
        session.stop()
        return seconds

    def stock() -> float:
        cluster = _stock_cluster()
        start = time.perf_counter()
        client = _start_stock(cluster)
        seconds = time.perf_counter() - start
        _stop_stock(cluster, client)
        return seconds

    return Pair(ours, stock)


@benchmark(
    peer="stock ipyparallel",
    work=f"{RANKS} ranks ended and as many fresh ones started",
    target=0.6,
    ranks=0,
    rounds=7,
    warm_up=1,
)
def cluster_restart() -> Pair:
    from parlab.cluster.session import Session

    session = Session(RANKS, None)
    atexit.register(session.stop)
    session.ready()
    stock = [(cluster := _stock_cluster()), _start_stock(cluster)]
    atexit.register(lambda: _stop_stock(*stock))

    def ours() -> None:
        session.replace()
        session.ready()

    def theirs() -> None:
        _stop_stock(*stock)
        stock[0] = _stock_cluster()
        stock[1] = _start_stock(stock[0])

    return Pair(ours, theirs)


@benchmark(
    peer="stock ipyparallel",
    work=f"%%px pass on {RANKS} ranks",
    target=1.3,
    ranks=0,
    rounds=60,
    calls=5,
    warm_up=10,
)
def px_pass() -> Pair:
    from ipyparallel.client.magics import ParallelMagics

    from parlab.cluster.magics import RankMagics
    from parlab.cluster.session import Session

    shell = _shell()
    session = Session(RANKS, None)
    atexit.register(session.stop)
    session.ready()
    cluster = _stock_cluster()
    client = _start_stock(cluster)
    atexit.register(_stop_stock, cluster, client)
    view = client[:]
    view.block = True
    ours, stock = RankMagics(shell, session), ParallelMagics(shell, view)
    return Pair(lambda: ours.cell_px("", "pass"), lambda: stock.cell_px("", "pass"))


@benchmark(
    peer="the limit: 1 s",
    work=f"{RANKS} ranks deadlocked in mpi4py: seconds from the deadline until all are free",
    target=1.0,
    ranks=0,
    rounds=9,
    warm_up=1,
)
def deadlock_release() -> Pair:
    from parlab.cluster.errors import DeadlineExceeded
    from parlab.cluster.magics import RankMagics
    from parlab.cluster.session import Session

    session = Session(RANKS, None)
    atexit.register(session.stop)
    session.ready()
    magics = RankMagics(_shell(), session)
    magics.cell_px("", "from parlab.rank import comm, rank")
    deadline = 1.0

    def ours() -> float:
        start = time.perf_counter()
        try:
            magics.cell_px(f"--timeout {deadline}", "if rank: comm.allreduce(1)")
        except DeadlineExceeded as error:
            assert "variables are intact" in str(error), error
        return time.perf_counter() - start - deadline

    return Pair(ours, lambda: 1.0)
