"""Exercise `predict_expert_bytes`."""

import math
from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.checks.base.trial import Trial
from parlab.costs.collectives import ring_bytes

MISTAKES = Mistakes(
    capacity_of_all_ranks=(
        "capacity: this counts the tokens of all ranks. Each expert has its own slots for the "
        "tokens of each rank"
    ),
    not_rounded_up="capacity: round up to a whole number, so that there is room for every choice",
    elements="exchange: this counts numbers. A float32 number takes 4 bytes",
    own_part="{name}: this includes what stays on this rank. It sends (N − 1)/N to other ranks",
    only_needed=(
        "{name}: this counts only slots with tokens. The tensor of all slots is sent, with the "
        "empty ones"
    ),
    too_few_exchanges=(
        "{name}: this counts {count} of the four all-to-alls: to the experts and back, and the "
        "same for the gradients"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_expert_bytes(check: Check) -> str:
    """Compare with the formulas, on one rank and on several."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        # With 6 ranks and these k and f, no two mistakes predict the same number.
        for ranks in (6, 1, 5):
            experts, k, factor = ranks * pick(2, 5), 3, pick(5, 7) / 4
            few = [experts * each + 1 for each in range(3, 10)]  # so that rounding up matters
            best = [n for n in few if _order_matters(n * k / experts, factor)]
            tokens = trial.draw.choice(best or few)
            if ranks == 1:  # the capacity is a whole number, and larger than the number of tokens
                k, factor = experts, 2.0 * experts
            elif ranks == 5:  # the capacity is a small whole number
                tokens, factor = tokens - 1, 1.0
            sizes = (tokens, pick(10, 200), experts, k, factor, ranks)
            _compare(trial, sizes)
    return "4 all-to-alls of E · C · H numbers, of which (N − 1)/N leave the rank"


def _order_matters(slots: float, factor: float) -> bool:
    """Return whether rounding up before the multiplication by the factor gives another number."""
    return math.ceil(factor * math.ceil(slots)) != math.ceil(factor * slots)


Sizes = tuple[int, int, int, int, float, int]


def _compare(trial: Trial, sizes: Sizes) -> None:
    names = ("T", "H", "E", "k", "f", "N")
    listed = ", ".join(f"{name} = {size}" for name, size in zip(names, sizes, strict=True))
    trial.situation = listed
    right = _right(*sizes)
    predicted = trial.run(*sizes)
    require_numbers(trial, predicted, right, _wrong(*sizes), "the right number")
    trial.require(lambda: _whole(predicted["capacity"]))


def _whole(capacity: float) -> Finding | None:
    return None if capacity == int(capacity) else MISTAKES.not_rounded_up()


def _right(
    tokens: int, hidden: int, experts: int, k: int, factor: float, ranks: int
) -> dict[str, float]:
    capacity = math.ceil(factor * tokens * k / experts)
    slots, chosen = (
        ring_bytes("all_to_all", 4 * rows * hidden, ranks)
        for rows in (experts * capacity, tokens * k)
    )
    return {"capacity": capacity, "exchange": slots, "layer": 4 * slots, "needed": 4 * chosen}


def _wrong(
    tokens: int, hidden: int, experts: int, k: int, factor: float, ranks: int
) -> Iterator[Wrong]:
    """Yield what each mistake predicts."""
    right, full = _right(tokens, hidden, experts, k, factor, ranks), factor * tokens * k / experts
    exchange, needed = right["exchange"], right["needed"] / 4
    for of_all in (math.ceil(ranks * full), ranks * right["capacity"]):
        yield "capacity", of_all, MISTAKES.capacity_of_all_ranks()
    for capacity in (int(full), full):
        yield "capacity", capacity, MISTAKES.not_rounded_up()
    yield "exchange", exchange / 4, MISTAKES.elements()
    for name, of_one in (("layer", exchange), ("needed", needed)):
        for count in (1, 2):
            found = MISTAKES.too_few_exchanges(name=name, count=count)
            yield name, count * of_one, found
    for name in ("exchange", "layer", "needed"):
        if ranks > 1:
            yield name, right[name] * ranks / (ranks - 1), MISTAKES.own_part(name=name)
    for name, count in (("exchange", 1), ("layer", 4)):
        yield name, count * needed, MISTAKES.only_needed(name=name)
