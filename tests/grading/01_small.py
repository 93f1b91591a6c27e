# %% [markdown]
# # A small lab
#
# Real exercises and real checks of lab 01, on three ranks: what graders of all labs meet, in
# seconds.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start(3)

# %%
# %%px
import numpy as np
from mpi4py import MPI

from parlab.checks import mpi as check
from parlab.chunks import chunk
from parlab.rank import comm, rank, world_size

# %% tags=["raises-exception"]
raise RuntimeError("a lab shows an error, and no grader waits for it")


# %% tags=["exercise"] exercise="ring_shift"
# %%px
def ring_shift(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Send `x` to the right neighbor; return what came from the left one."""
    # BEGIN SOLUTION
    received = np.empty_like(x)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(x, dest=right, recvbuf=received, source=left)
    return received
    # END SOLUTION


# %% tags=["check"] exercise="ring_shift" points=2
# %%px --timeout 60
check.ring_shift(ring_shift)

# %% tags=["hidden-check"] exercise="ring_shift" points=1
# %%px --timeout 15
check.show_values(received=ring_shift(np.arange(3) + 10 * rank, comm).tolist())


# %% tags=["exercise"] exercise="ring_all_gather"
# %%px
def ring_all_gather(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Fill `x` with all chunks: chunk r is that of rank r."""
    # BEGIN SOLUTION
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - step, size)]
        incoming = x[chunk(len(x), rank - step - 1, size)]
        comm.Sendrecv(outgoing, dest=(rank + 1) % size, recvbuf=incoming, source=(rank - 1) % size)
    # END SOLUTION


# %% tags=["check"] exercise="ring_all_gather" points=3
# %%px --timeout 60
check.ring_all_gather(ring_all_gather)

# %% tags=["hidden-check"] exercise="ring_all_gather" points=1
# %%px --timeout 15
x = np.zeros(11, dtype=np.int64)
x[chunk(11, rank, world_size)] = rank + 1
ring_all_gather(x, comm)
check.show_values(x=x.tolist(), mean=f"{x.mean():.4f}")


# %% tags=["exercise"] exercise="ring_reduce_scatter"
# %%px
def ring_reduce_scatter(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Sum `x` over the ranks; return this rank's chunk of the sum."""
    # BEGIN SOLUTION
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        comm.Sendrecv(outgoing, dest=(rank + 1) % size, recvbuf=incoming, source=(rank - 1) % size)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]
    # END SOLUTION


# %% tags=["check"] exercise="ring_reduce_scatter" points=2
# %%px --timeout 60
check.ring_reduce_scatter(ring_reduce_scatter)

# %% tags=["hidden-check"] exercise="ring_reduce_scatter" points=2
# %%px --timeout 15
check.show_values(chunk=ring_reduce_scatter(np.arange(11) * (rank + 1), comm).tolist())


# %% tags=["exercise"] exercise="ring_all_reduce"
# %%px
def ring_all_reduce(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Replace `x` on every rank by the sum over the ranks."""
    # BEGIN SOLUTION
    flat = np.ascontiguousarray(x).reshape(-1)
    ring_reduce_scatter(flat, comm)
    ring_all_gather(flat, comm)
    if not np.shares_memory(x, flat):
        x[...] = flat.reshape(x.shape)
    # END SOLUTION


# %% tags=["check"] exercise="ring_all_reduce" points=2
# %%px --timeout 60
check.ring_all_reduce(ring_all_reduce)

# %% tags=["hidden-check"] exercise="ring_all_reduce" points=1
# %%px --timeout 15
x = (np.arange(12) * (rank + 1)).reshape(4, 3)
ring_all_reduce(x.T, comm)
check.show_values(x=x.tolist())

# %%
print("what comes after the last check grades nothing")
