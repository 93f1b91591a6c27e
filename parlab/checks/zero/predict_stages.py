"""Exercise `predict_stages`."""

from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.zero._predictions import STAGES, Variant, compare
from parlab.costs.zero import FLOAT32_ADAM, MIXED_ADAM, Recipe, total

MISTAKES = Mistakes(
    no_states="{name}: this leaves out Adam's states, two float32 numbers for each parameter",
    mixed=(
        "{name}: this is mixed precision, with 2 bytes for parameters and gradients and 12 for "
        "optimizer states. Here, everything is float32"
    ),
    all_ranks="{name}: this is the total over all ranks. How much does one rank hold?",
    numbers="{name}: this counts numbers. A float32 takes 4 bytes",
)


@check_of(MISTAKES, ranks=1)
def predict_stages(check: Check) -> str:
    """Compare with the closed forms, for several sizes and numbers of ranks."""
    compare(check, held, MISTAKES, variants)
    return "16Ψ; 8Ψ + 8Ψ/N; 4Ψ + 12Ψ/N; 16Ψ/N"


def held(size: int, ranks: int, recipe: Recipe = FLOAT32_ADAM) -> dict[str, float]:
    return {name: total(size, ranks, i, recipe) for i, name in enumerate(STAGES)}


def variants(size: int, ranks: int) -> Iterator[Variant]:
    right = held(size, ranks)
    # In stage 1, mixed precision needs as much as float32 in stage 2.
    yield "mixed", {"stage_2": held(size, ranks, MIXED_ADAM)["stage_2"]}
    yield "no_states", held(size, ranks, Recipe(4, 4, 0))
    yield "all_ranks", {name: value * ranks for name, value in right.items()}
    yield "numbers", {name: value / 4 for name, value in right.items()}
