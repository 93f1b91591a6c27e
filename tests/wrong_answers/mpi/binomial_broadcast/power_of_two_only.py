"""with 3 ranks

Sends to ranks that are not there.
"""


def binomial_broadcast(x, root, comm):
    relative = (comm.rank - root) % comm.size
    reached = 1
    while reached < comm.size:
        if relative < reached:
            comm.Send(x, dest=(comm.rank + reached) % comm.size)
        elif relative < 2 * reached:
            comm.Recv(x, source=(comm.rank - reached) % comm.size)
        reached *= 2
