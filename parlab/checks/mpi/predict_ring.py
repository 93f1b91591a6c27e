"""Exercise `predict_ring`."""

import numpy as np
from mpi4py import MPI

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.foretold import Numbers, as_measured_and_counted
from parlab.checks.mpi.predict_broadcast import counted as counted_broadcast
from parlab.checks.mpi.predict_broadcast import taken, tree, tree_messages
from parlab.checks.predictions import Wrong
from parlab.checks.trial import Trial
from parlab.chunks import chunk
from parlab.costs.collectives import ceil_log2

MISTAKES = Mistakes(
    half_of_it=("{name}: that is the reduce-scatter alone; the all-gather is as long once more"),
    whole_data_each_round=(
        "share_ring: that is the whole data in each round, or what all ranks send together. In "
        "each of the 2(N−1) rounds one rank sends one chunk, an N-th of the data"
    ),
    grows_with_ranks=(
        "share_ring: more ranks have more rounds, but smaller chunks: it stays below 2"
    ),
    only_the_broadcast=(
        "rounds_tree: that is the way back alone; the sum has to get to rank 0 first"
    ),
)


@check_of(MISTAKES)
def predict_ring(check: Check) -> str:
    """Compare with the messages of an all-reduce on a ring and of one by trees."""
    return as_measured_and_counted(check, measure, counted, wrong_numbers, grows)


def counted(size: int) -> Numbers:
    rounds_ring, broadcast = 2 * (size - 1), counted_broadcast(size)
    return {
        "rounds_ring": rounds_ring,
        "share_ring": rounds_ring / size,
        "rounds_tree": 2 * broadcast["rounds_tree"],
        "share_tree": broadcast["messages_root"],
    }


def measure(trial: Trial) -> Numbers:
    """Rounds of both ways, and what rank 0 sends, over the data's own bytes."""
    x = np.zeros(100 * trial.size)
    if trial.comm is not None:
        ring(x, trial.comm)
    rounds_ring, _ = taken(trial)
    bytes_ring = trial.bytes_sent(0)
    if trial.comm is not None:
        tree_to_rank_0(trial.comm)
        tree(trial.comm)
    rounds_tree, sent = taken(trial)
    return {
        "rounds_ring": rounds_ring,
        "share_ring": bytes_ring / x.nbytes,
        "rounds_tree": rounds_tree,
        "share_tree": sent[0],  # each of its messages is all of the data
    }


def ring(x: np.ndarray, comm: MPI.Intracomm) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(2 * (comm.size - 1)):
        outgoing, incoming = (
            x[chunk(len(x), rank - step, comm.size)] for rank in (comm.rank, comm.rank - 1)
        )
        comm.Sendrecv(outgoing, right, recvbuf=np.empty_like(incoming), source=left)


def tree_to_rank_0(comm: MPI.Intracomm) -> None:
    """The broadcast's messages, the other way round and in the other order."""
    x = np.zeros(1)
    for messages in reversed(tree_messages(comm.size)):
        for dest, source in messages:
            if comm.rank == source:
                comm.Send(x, dest=dest)
            elif comm.rank == dest:
                comm.Recv(x, source=source)


def wrong_numbers(size: int) -> list[Wrong]:
    return [
        ("rounds_ring", size - 1, MISTAKES.half_of_it(name="rounds_ring")),
        ("share_ring", (size - 1) / size, MISTAKES.half_of_it(name="share_ring")),
        ("share_ring", 2 * (size - 1), MISTAKES.whole_data_each_round()),
        ("rounds_tree", ceil_log2(size), MISTAKES.only_the_broadcast()),
    ]


def grows(predicted: Numbers, right: Numbers) -> Finding | None:
    return MISTAKES.grows_with_ranks() if predicted["share_ring"] >= 2.02 else None
