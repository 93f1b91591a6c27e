"""A pipeline's schedule.

Each rank holds one stage of a model. Its list says in which order it does the forward passes (F)
and the backward passes (B) of the micro-batches. A forward pass needs the activations from the rank
before, and a backward pass needs the gradient from the rank after. Here, an array of zeros stands
for both, and sleeping stands for computing.

The program runs GPipe: first all forward passes, then all backward passes.

**Predict** how long it takes on four ranks, and how many micro-batches each rank holds at most.
Then run it, and compare the picture with the chapter's. It shows the messages. Between them, a rank
computes.

Change the list that `schedule` returns, and run the program again:

- Use 8 micro-batches, and then 2. How does the bubble change?
- Let each rank but the last do its first backward pass before its last forward pass. Which ranks
  wait for each other?
- Return a 1F1B schedule. Does it take less time, or does it hold fewer micro-batches?
- With 1F1B, replace `Isend` by `Send`, and leave out `Waitall`. Why does this work with GPipe only?
"""

from parlab.pipeline import backward, bubble, forward, live, simulate, texts

MICRO_BATCHES = 4
FORWARD, BACKWARD = 0.02, 0.04  # seconds


def schedule(stage):
    """Return the actions of a stage, in order."""
    forwards = [forward(stage, m) for m in range(MICRO_BATCHES)]
    backwards = [backward(stage, m) for m in range(MICRO_BATCHES)]
    return forwards + backwards


def run(actions):
    """Do each action: receive what it needs, compute, and send its result."""
    sends = []
    for kind, stage, micro_batch in actions:
        step, seconds = (1, FORWARD) if kind == "forward" else (-1, BACKWARD)
        before, after = stage - step, stage + step
        if 0 <= before < world_size:
            comm.Recv(np.empty(1000), source=before, tag=micro_batch)
        time.sleep(seconds)
        if 0 <= after < world_size:
            sends.append(comm.Isend(np.zeros(1000), dest=after, tag=micro_batch))
    MPI.Request.Waitall(sends)


print(texts(schedule(rank), world_size))
comm.Barrier()
start = time.perf_counter()
run(schedule(rank))
comm.Barrier()
seconds = time.perf_counter() - start

if rank == 0:
    spans = simulate([schedule(stage) for stage in range(world_size)], FORWARD, BACKWARD)
    print(f"{seconds:.2f} s, by the formula {max(span.end for span in spans):.2f} s")
    print(f"bubble {bubble(spans):.2f}, micro-batches held at most: {live(spans)}")
