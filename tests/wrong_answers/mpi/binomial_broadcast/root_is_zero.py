"""root 1

Ignores `root`.
"""


def binomial_broadcast(x, root, comm):
    reached = 1
    while reached < comm.size:
        if comm.rank < reached:
            if comm.rank + reached < comm.size:
                comm.Send(x, dest=comm.rank + reached)
        elif comm.rank < 2 * reached:
            comm.Recv(x, source=comm.rank - reached)
        reached *= 2
