"""Collectives.

Every rank makes the same call, and the library decides which rank sends what to which other rank.
The digits of a number show which ranks' numbers it contains: 1111 is the sum over four ranks.

**Predict** each line before you run the program. Then change it:

- Replace the all-reduce by a reduce-scatter and an all-gather. Is the result the same?
- Leave out one rank's `Barrier`. Which ranks are stuck, and at which line?
"""

x = np.full(world_size, 10**rank)  # one chunk for each rank
part, y = np.zeros(1, dtype=x.dtype), np.zeros_like(x)


def show(name, numbers):
    print(f"{name:15}", "  ".join(f"{number:0{world_size}d}" for number in numbers))


show("before", x)

copy = x.copy()
comm.Bcast(copy, root=0)
show("broadcast", copy)

comm.Scatter(x if rank == 0 else None, part, root=0)
show("scatter", part)

comm.Allgather(x[:1], y)
show("all-gather", y)

comm.Reduce(x, y if rank == 0 else None, op=MPI.SUM, root=0)
show("reduce", y if rank == 0 else [])

comm.Reduce_scatter_block(x, part)
show("reduce-scatter", part)

comm.Allreduce(x, y)
show("all-reduce", y)

comm.Alltoall(x + np.arange(world_size), y)
show("all-to-all", y)

comm.Barrier()
