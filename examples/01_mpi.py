"""An all-reduce on a ring, built from messages, next to MPI's own. Needs only mpi4py and NumPy.

    mpiexec -n 4 python examples/01_mpi.py
    python -m parlab.mpirun -n 4 examples/01_mpi.py  # also as root, and with fewer than 4 cores

Rank 0 prints, for each size, whether the two agree, their times, and their bus bandwidths.
"""

import itertools
import statistics
import time

import numpy as np
from mpi4py import MPI

SIZES = [2**10, 2**16, 2**22]  # bytes
REPEATS = 11


def chunks(x: np.ndarray, n: int) -> list[np.ndarray]:
    """Return n views that divide `x`. Their lengths differ by at most one."""
    edges = [len(x) * i // n for i in range(n + 1)]
    return [x[a:b] for a, b in itertools.pairwise(edges)]


def ring_all_reduce(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Replace the vector `x` on every rank with the sum over the ranks."""
    rank, n = comm.rank, comm.size
    right, left = (rank + 1) % n, (rank - 1) % n
    parts = chunks(x, n)
    received = np.empty(max(map(len, parts)), x.dtype)
    for step in range(n - 1):  # reduce-scatter: at the end, rank r has the complete chunk r
        outgoing, partial = parts[(rank - 1 - step) % n], parts[(rank - 2 - step) % n]
        incoming = received[: len(partial)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        partial += incoming
    for step in range(n - 1):  # all-gather: complete chunks travel around the ring
        outgoing, incoming = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)


def median_seconds(all_reduce, x: np.ndarray, comm: MPI.Intracomm) -> float:
    """Return the median time of an all-reduce of a copy of `x` on the slowest rank."""
    times = []
    for _ in range(REPEATS):
        work = x.copy()
        comm.Barrier()
        start = time.perf_counter()
        all_reduce(work, comm)
        times.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))
    return statistics.median(times)


def main() -> None:
    comm = MPI.COMM_WORLD
    ways = {"ring": ring_all_reduce, "MPI": lambda x, comm: comm.Allreduce(MPI.IN_PLACE, x)}
    hosts = comm.gather(MPI.Get_processor_name())
    if comm.rank == 0:
        print(f"{comm.size} ranks on {len(set(hosts))} node(s)")
    for size in SIZES:
        x = np.random.default_rng(comm.rank).integers(0, 1000, size // 4).astype(np.float32)
        sums = {name: x.copy() for name in ways}
        for name, all_reduce in ways.items():
            all_reduce(sums[name], comm)
        agree = comm.allreduce(np.array_equal(*sums.values()), op=MPI.LAND)
        for name, all_reduce in ways.items():
            seconds = median_seconds(all_reduce, x, comm)
            bus = 2 * (comm.size - 1) / comm.size * x.nbytes / seconds
            if comm.rank == 0:
                row = f"{1e6 * seconds:>9,.0f} µs {bus / 1e9:>8.2f} GB/s"
                print(f"{x.nbytes:>9,} bytes {name:>5} {row}  {'same sum' if agree else 'WRONG'}")
    if comm.rank == 0:
        print("done")


if __name__ == "__main__":
    main()
