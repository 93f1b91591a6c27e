"""Exercise `predict_traffic`."""

from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.zero._predictions import STAGES, Variant, compare
from parlab.costs.zero import bytes_sent

MISTAKES = Mistakes(
    whole=(
        "{name}: on a ring, a rank keeps its own part, so each gather or reduce-scatter sends only "
        "(N−1)/N of the data"
    ),
    once=(
        "{name}: this is half of what is sent. An all-reduce is a reduce-scatter and an "
        "all-gather. Stages 1 and 2 use both, too. A number takes 4 bytes"
    ),
    all_reduce_and_gather=(
        "{name}: this is an all-reduce of gradients and an all-gather of parameters. With a "
        "reduce-scatter, the gradients take half of that"
    ),
    gathered_once=(
        "{name}: this counts two collectives. Count a gather for each pass, and the reduce-scatter"
    ),
    all_ranks="{name}: this is the total over all ranks. How much does one rank send?",
    elements="{name}: this counts numbers. A float32 takes 4 bytes",
)


@check_of(MISTAKES, ranks=1)
def predict_traffic(check: Check) -> str:
    """Compare with the formula, for several sizes and numbers of ranks."""
    compare(check, sent, MISTAKES, variants)
    return "2Ψ, 2Ψ, 2Ψ and 3Ψ numbers of 4 bytes, times (N−1)/N, as the ledger counts them"


def sent(size: int, ranks: int) -> dict[str, float]:
    return {name: bytes_sent(size, ranks, i, 4) for i, name in enumerate(STAGES)}


def variants(size: int, ranks: int) -> Iterator[Variant]:
    right = sent(size, ranks)
    once = right["plain"] / 2
    yield "whole", {"plain": right["plain"] * ranks / max(ranks - 1, 1)}
    yield "all_ranks", {name: value * ranks for name, value in right.items()}
    yield "elements", {name: value / 4 for name, value in right.items()}
    yield "once", dict.fromkeys(STAGES[:3], once)
    yield "all_reduce_and_gather", dict.fromkeys(STAGES[1:3], 3 * once)
    yield "gathered_once", {"stage_3": 2 * once}
