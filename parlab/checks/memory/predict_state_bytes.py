"""Exercise `predict_state_bytes`."""

import math

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers

MISTAKES = Mistakes(
    numbers="{name}: this counts numbers. A float32 takes 4 bytes",
    with_parameters="{name}: this includes the parameters. Count only the states",
    one_moment="adam: this is one number for each parameter. Adam keeps two moments",
    product="adafactor: this is one number for each parameter. Count the rows and the columns",
    first_moment="adafactor: this includes a first moment. Adafactor has none",
)
Shapes = list[tuple[int, ...]]


@check_of(MISTAKES, ranks=1)
def predict_state_bytes(check: Check) -> str:
    """Compare with the number of elements, and of rows and columns."""
    with check.trial() as trial:
        n, m = trial.draw.randrange(20, 90), trial.draw.randrange(90, 200)
        several = [(n, m), (n,), (m, 3), (n, m), (n, n), (5,), (n,)]
        # The first two have the same form, so that returning the last result again is wrong.
        for shapes in ([(n, m)], [(m, n + 1)], several, [(7,)], [(1, m), (n, 1)]):
            trial.situation = f"shapes {shapes}"
            predicted = trial.run(list(shapes))
            right = state_bytes(shapes)
            require_numbers(trial, predicted, right, wrong(right), "the right number")
    return "4Ψ for momentum, 8Ψ for Adam, 4(n + m) for each matrix with Adafactor"


def state_bytes(shapes: Shapes) -> dict[str, float]:
    size = 4 * sum(map(math.prod, shapes))
    return {"momentum": size, "adam": 2 * size, "adafactor": 4 * sum(map(sum, shapes))}


def wrong(right: dict[str, float]) -> list[Wrong]:
    """List what each mistake predicts."""
    size, kept = right["momentum"], right["adafactor"]
    table = [
        ("momentum", 2 * size, "with_parameters"),
        ("adam", 3 * size, "with_parameters"),
        ("adam", size, "one_moment"),
        ("adafactor", size, "product"),
        ("adafactor", kept + size, "first_moment"),
        *((name, value / 4, "numbers") for name, value in right.items()),
    ]
    return [(name, value, getattr(MISTAKES, key)(name=name)) for name, value, key in table]
