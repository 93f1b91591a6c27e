"""A schedule is a list.

Four ranks are the stages of a pipeline. `SCHEDULE` has a list of actions for each rank, in the
order in which it does them. `F2` is the forward pass of micro-batch 2, and `B2` is its backward
pass. The code below the lists runs any schedule: it receives what an action needs, computes, and
sends the result. Here, a computation only takes time.

**Predict** how long rank 0 takes. Run the program, and show the picture to scale. Then change it,
one step after the other:

- Let rank 3 begin with `F0 B0 F1 B1`. The blocking `Send` makes the ranks wait forever. Find the
  circle of ranks.
- Replace the last line of `run` by `requests.append(comm.Isend(data, dest=dest, tag=tag))`. Now the
  same lists end.
- Write 1F1B: rank 3 alternates `F` and `B` from the beginning, rank 2 does one more `F` first, and
  so on. Does rank 0 take less time than before? What does 1F1B save?
- Let rank 1 run `B0` before `F1`, while rank 2 runs `F0 F1 B0`. Why does `Isend` not help here?
"""

SCHEDULE = [
    "F0 F1 F2 F3 B0 B1 B2 B3",  # rank 0
    "F0 F1 F2 F3 B0 B1 B2 B3",  # rank 1
    "F0 F1 F2 F3 B0 B1 B2 B3",  # rank 2
    "F0 F1 F2 F3 B0 B1 B2 B3",  # rank 3
]
SECONDS = {"F": 0.05, "B": 0.1}
requests = []


def run(kind, micro_batch):
    step = 1 if kind == "F" else -1  # activations travel to the next rank, gradients back
    source, dest = comm.rank - step, comm.rank + step
    data, tag = np.zeros(8), 2 * micro_batch + (kind == "B")
    if 0 <= source < comm.size:
        comm.Recv(data, source=source, tag=tag)
    time.sleep(SECONDS[kind])
    if 0 <= dest < comm.size:
        comm.Send(data, dest=dest, tag=tag)


if world_size != len(SCHEDULE):
    raise ValueError(f"SCHEDULE is for {len(SCHEDULE)} ranks: choose this number below the program")
comm.Barrier()
start = time.perf_counter()
for action in SCHEDULE[rank].split():
    run(action[0], int(action[1:]))
MPI.Request.Waitall(requests)
print(f"done after {1000 * (time.perf_counter() - start):.0f} ms")
