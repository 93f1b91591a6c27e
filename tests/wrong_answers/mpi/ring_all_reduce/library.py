"""it calls `comm.Allreduce`

The function that the exercise is about.
"""

from mpi4py import MPI


def ring_all_reduce(x, comm):
    flat = x.flatten()
    comm.Allreduce(MPI.IN_PLACE, flat)
    x[...] = flat.reshape(x.shape)
