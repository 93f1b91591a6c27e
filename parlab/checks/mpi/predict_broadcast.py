"""Exercise `predict_broadcast`."""

import numpy as np
from mpi4py import MPI

from parlab.checks.check import Check, check_of
from parlab.checks.messages import rounds_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.foretold import Numbers, as_measured_and_counted
from parlab.checks.predictions import Wrong
from parlab.checks.trial import Trial
from parlab.costs.collectives import ceil_log2

MISTAKES = Mistakes(
    one_round_each=(
        "rounds_tree: the root tells one rank in a round, but so does every rank that has been "
        "told: their number doubles"
    ),
    rounded_down=(
        "rounds_tree: log₂ N is rounded up: with 5 ranks, two rounds reach 4 of them, and the "
        "fifth needs a third"
    ),
    root_sends_all="messages_root: only one by one does the root send all; here others help",
    fewer_messages=(
        "messages_tree: every rank but the root has to be told once, by whomever: a tree saves "
        "rounds, not messages"
    ),
)


@check_of(MISTAKES)
def predict_broadcast(check: Check) -> str:
    """Compare with the messages of a broadcast one by one and of one by a tree."""
    return as_measured_and_counted(check, measure, counted, wrong_numbers, fewer_messages)


def counted(size: int) -> Numbers:
    rounds = tree_messages(size)
    sources = [source for messages in rounds for source, _ in messages]
    return {
        "rounds_one_by_one": size - 1,
        "rounds_tree": len(rounds),
        "messages_tree": len(sources),
        "messages_root": sources.count(0),
    }


def measure(trial: Trial) -> Numbers:
    """Rounds of both ways, messages of the tree altogether and of its root."""
    if trial.comm is not None:
        one_by_one(trial.comm)
    rounds_one_by_one, _ = taken(trial)
    if trial.comm is not None:
        tree(trial.comm)
    rounds_tree, sent = taken(trial)
    return {
        "rounds_one_by_one": rounds_one_by_one,
        "rounds_tree": rounds_tree,
        "messages_tree": sum(sent),
        "messages_root": sent[0],
    }


def taken(trial: Trial) -> tuple[int, list[int]]:
    """Rounds of the calls since the last time, and how many messages each rank sent."""
    trial.calls = trial.gather(trial.ledger.calls)
    trial.ledger.clear()
    rounds = rounds_of(trial)
    assert rounds is not None
    return rounds, [len(trial.sends(rank)) for rank in range(trial.size)]


def one_by_one(comm: MPI.Intracomm) -> None:
    x = np.zeros(1)
    if comm.rank == 0:
        for dest in range(1, comm.size):
            comm.Send(x, dest=dest)
    else:
        comm.Recv(x, source=0)


def tree(comm: MPI.Intracomm) -> None:
    x = np.zeros(1)
    for messages in tree_messages(comm.size):
        for source, dest in messages:
            if comm.rank == source:
                comm.Send(x, dest=dest)
            elif comm.rank == dest:
                comm.Recv(x, source=source)


def tree_messages(size: int) -> list[list[tuple[int, int]]]:
    """Who sends to whom in each round of a broadcast from rank 0."""
    powers = (2**k for k in range(ceil_log2(size)))
    return [[(rank, rank + n) for rank in range(n) if rank + n < size] for n in powers]


def wrong_numbers(size: int) -> list[Wrong]:
    return [
        ("rounds_tree", size - 1, MISTAKES.one_round_each()),
        ("rounds_tree", size.bit_length() - 1, MISTAKES.rounded_down()),
        ("messages_root", size - 1, MISTAKES.root_sends_all()),
    ]


def fewer_messages(predicted: Numbers, measured: Numbers) -> Finding | None:
    fewer = predicted["messages_tree"] < 0.99 * measured["messages_tree"]
    return MISTAKES.fewer_messages() if fewer else None
