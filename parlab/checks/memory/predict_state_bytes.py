"""Exercise `predict_state_bytes`."""

import math
from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers

MISTAKES = Mistakes(
    numbers="{name}: this counts numbers. A float32 takes 4 bytes",
    with_parameters="{name}: this includes the parameters. Count only the states",
    one_moment="adam: this is one number for each parameter. Adam keeps two moments",
    product="adafactor: this is one number for each parameter. Count the rows and the columns",
    first_moment="adafactor: this includes a first moment. Adafactor has none",
    vectors_left_out="adafactor: this leaves out vectors, which keep one number for each element",
)
Shapes = list[tuple[int, ...]]


@check_of(MISTAKES, ranks=1)
def predict_state_bytes(check: Check) -> str:
    """Compare with the number of elements, and of rows and columns."""
    with check.trial() as trial:
        n, m = trial.draw.randrange(20, 90), trial.draw.randrange(90, 200)
        several = [(n, m), (n,), (m, 3), (n, n), (5,)]
        # The first two have the same form: a function may not give its last result again.
        for shapes in ([(n, m)], [(m, n + 1)], several, [(7,)], [(1, m), (n, 1)]):
            trial.situation = f"shapes {shapes}"
            predicted = trial.run(list(shapes))
            right = state_bytes(shapes)
            require_numbers(trial, predicted, right, wrong(shapes), "the right number")
    return "4Ψ for momentum, 8Ψ for Adam, 4(n + m) for each matrix with Adafactor"


def state_bytes(shapes: Shapes) -> dict[str, float]:
    size = 4 * sum(map(math.prod, shapes))
    return {"momentum": size, "adam": 2 * size, "adafactor": 4 * sum(map(sum, shapes))}


def wrong(shapes: Shapes) -> Iterator[Wrong]:
    """Yield what each mistake predicts; a number that several of them explain names none."""
    right = state_bytes(shapes)
    size, kept = right["momentum"], right["adafactor"]
    wrongs: list[Wrong] = [
        ("adam", size, MISTAKES.one_moment()),
        ("adafactor", size, MISTAKES.product()),
        ("adafactor", kept + size, MISTAKES.first_moment()),
        (
            "adafactor",
            state_bytes([s for s in shapes if len(s) > 1])["adafactor"],
            MISTAKES.vectors_left_out(),
        ),
    ]
    for name, value in right.items():
        wrongs.append((name, value / 4, MISTAKES.numbers(name=name)))
        if name != "adafactor":
            wrongs.append((name, value + size, MISTAKES.with_parameters(name=name)))
    for one in wrongs:
        same = {w[2].mistake for w in wrongs if w[0] == one[0] and w[1] == one[1]}
        if len(same) == 1 and one[1]:
            yield one
