"""holds what it held before

⌊log₂ N⌋ rounds reach only a power of two.
"""


def binomial_broadcast(x, root, comm):
    relative = (comm.rank - root) % comm.size
    reached = 1
    while 2 * reached <= comm.size:
        if relative < reached:
            if relative + reached < comm.size:
                comm.Send(x, dest=(comm.rank + reached) % comm.size)
        elif relative < 2 * reached:
            comm.Recv(x, source=(comm.rank - reached) % comm.size)
        reached *= 2
