"""Exercise `predict_softmax`."""

from collections.abc import Iterator

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.kernels.traffic import traffic

MISTAKES = Mistakes(
    elements="{name}: that counts numbers, not bytes",
    reads_alone="{name}: that is what is read; what is written moves too",
    writes_alone="{name}: that is what is written; what is read moves too",
    each_once=(
        "eager: that is one read and one write of the matrix for each operation; `amax` and `sum` "
        "write one number a row, the subtraction and the division read such a column as well"
    ),
    columns_left_out="eager: that leaves out `highest` and `total`, a number for each row",
    not_fused="fused: that is what the five operations move",
    once="fused: that counts the matrix once: it is read, and its softmax written",
    rounded_down="programs: that rounds down, and the last numbers have no program",
    for_each_number="intensity: that is FLOP for each number, not for each byte",
    one_way="intensity: that leaves out what is read, or what is written: both move",
    of_eager="intensity: that is what the five operations have, not your kernel",
    upside_down="intensity: that is bytes for each FLOP",
    program_per_row="programs: that is one for each row; exercise 1 has one for each block",
)

OPERATIONS = 5  # a FLOP each, for each number


@check_of(MISTAKES)
def predict_softmax(check: Check) -> str:
    """Compare with what torch's operations really read and write."""
    with check.trial() as trial:
        for size, dtype in ((4, torch.float32), (2, torch.float16), (8, torch.float64)):
            # Several programs, and so few columns that each of `highest` and `total` is over 1 %.
            rows, columns = trial.draw.randrange(1501, 2500, 2), trial.draw.randrange(5, 10, 2)
            trial.situation = f"{rows} × {columns} numbers of {size} bytes"
            right = measured(rows, columns, dtype)
            predicted = trial.run(rows, columns, size)
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, wrong_numbers(right, rows, columns, size)),
                lambda: first_wrong(predicted, right),
            )
    return "(8MN + 4M) numbers moved by five operations, 2MN by one, 5MN FLOP; ⌈MN/1024⌉ programs"


def measured(rows: int, columns: int, dtype: torch.dtype) -> dict[str, float]:
    x = torch.ones(rows, columns, dtype=dtype)
    with traffic() as eager:
        highest = x.amax(1, keepdim=True)
        shifted = x - highest
        powers = shifted.exp()
        total = powers.sum(1, keepdim=True)
        y = powers / total
    return {
        "eager": eager.bytes,
        "fused": x.nbytes + y.nbytes,
        "intensity": OPERATIONS * x.numel() / (x.nbytes + y.nbytes),
        "programs": -(-x.numel() // 1024),
    }


def wrong_numbers(right: dict[str, float], rows: int, columns: int, size: int) -> Iterator[Wrong]:
    matrix, column = rows * columns * size, rows * size
    for name in ("eager", "fused"):
        yield name, right[name] / size, MISTAKES.elements(name=name)
    yield "eager", 5 * matrix + 2 * column, MISTAKES.reads_alone(name="eager")
    yield "eager", 3 * matrix + 2 * column, MISTAKES.writes_alone(name="eager")
    yield "eager", 8 * matrix, MISTAKES.columns_left_out()
    yield "eager", 10 * matrix, MISTAKES.each_once()
    yield "fused", right["eager"], MISTAKES.not_fused()
    yield "fused", matrix, MISTAKES.once()
    flop = OPERATIONS * rows * columns
    yield "intensity", OPERATIONS, MISTAKES.for_each_number()
    yield "intensity", flop / matrix, MISTAKES.one_way()
    yield "intensity", flop / right["eager"], MISTAKES.of_eager()
    yield "intensity", 1 / right["intensity"], MISTAKES.upside_down()
    yield "programs", rows * columns // 1024, MISTAKES.rounded_down()
    yield "programs", rows, MISTAKES.program_per_row()
