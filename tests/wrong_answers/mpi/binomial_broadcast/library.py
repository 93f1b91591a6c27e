"""it calls `comm.Bcast`

The function that the exercise is about.
"""


def binomial_broadcast(x, root, comm):
    comm.Bcast(x, root=root)
