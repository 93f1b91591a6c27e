"""Exercise `predict_broadcast`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong
from parlab.checks.mpi._predictions import Numbers, compare
from parlab.costs import collectives

MISTAKES = Mistakes(
    one_round_each=(
        "rounds_tree: this is one round for each rank. In a tree, every rank that has the data "
        "sends it, so the number of ranks that have it doubles in each round"
    ),
    rounded_down=(
        "rounds_tree: round log₂ N up. Of 5 ranks, two rounds reach only 4, so a third is needed"
    ),
    root_sends_all=(
        "messages_root: the root sends all messages only if it sends them one by one. In a tree, "
        "other ranks help"
    ),
    fewer_messages=(
        "messages_tree: every rank except the root must receive the data once. A tree saves "
        "rounds, not messages"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_broadcast(check: Check) -> str:
    """Compare with the formulas of a one-by-one broadcast and a tree broadcast."""
    return compare(check, right_numbers, wrong_numbers)


def right_numbers(size: int) -> Numbers:
    one_by_one, tree = (
        cost(1, size) for cost in (collectives.flat_broadcast, collectives.binomial_broadcast)
    )
    return {
        "rounds_one_by_one": one_by_one.rounds,
        "rounds_tree": tree.rounds,
        "messages_tree": one_by_one.bytes,
        "messages_root": tree.bytes,
    }


def wrong_numbers(size: int) -> list[Wrong]:
    return [
        ("rounds_tree", size - 1, MISTAKES.one_round_each()),
        ("rounds_tree", size.bit_length() - 1, MISTAKES.rounded_down()),
        ("messages_root", size - 1, MISTAKES.root_sends_all()),
        ("messages_tree", collectives.ceil_log2(size), MISTAKES.fewer_messages()),
    ]
