"""Exercise `predict_ring`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong
from parlab.checks.mpi._predictions import Numbers, compare
from parlab.costs import collectives

MISTAKES = Mistakes(
    half_of_it="{name}: this is the reduce-scatter alone. The all-gather needs as much again",
    whole_data_each_round=(
        "share_ring: this is all of the data in each round, or what all ranks send together. In "
        "each of the 2(N−1) rounds, a rank sends one chunk, an N-th of the data"
    ),
    grows_with_ranks=(
        "share_ring: with more ranks, there are more rounds but smaller chunks. The share stays "
        "below 2"
    ),
    only_the_broadcast=(
        "rounds_tree: this is the broadcast alone. First, the sum must reach rank 0"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_ring(check: Check) -> str:
    """Compare with the formulas of a ring all-reduce and a tree all-reduce."""
    return compare(check, right_numbers, wrong_numbers)


def right_numbers(size: int) -> Numbers:
    ring = collectives.ring_all_reduce(1, size)
    return {
        "rounds_ring": ring.rounds,
        "share_ring": ring.bytes,
        "rounds_tree": collectives.tree_all_reduce(1, size).rounds,
        "share_tree": collectives.binomial_broadcast(1, size).bytes,
    }


def wrong_numbers(size: int) -> list[Wrong]:
    return [
        ("rounds_ring", size - 1, MISTAKES.half_of_it(name="rounds_ring")),
        ("share_ring", (size - 1) / size, MISTAKES.half_of_it(name="share_ring")),
        ("share_ring", 2 * (size - 1), MISTAKES.whole_data_each_round()),
        ("share_ring", size, MISTAKES.grows_with_ranks()),
        ("rounds_tree", collectives.ceil_log2(size), MISTAKES.only_the_broadcast()),
    ]
