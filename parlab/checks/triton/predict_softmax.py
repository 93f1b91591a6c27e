"""Exercise `predict_softmax`."""

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.predictions import first_wrong, form, misconception
from parlab.kernels.traffic import traffic

MISTAKES = Mistakes(
    elements="{name}: this counts numbers, not bytes",
    reads_alone="{name}: this counts only what is read. Add what is written",
    each_once=(
        "eager: this counts one read and one write of the matrix for each operation. `amax` and "
        "`sum` write one number a row, and the subtraction and the division also read one"
    ),
    columns_left_out="eager: this leaves out `highest` and `total`, one number for each row",
    rounded_down="programs: this rounds down, so no program computes the last numbers",
    for_each_number="intensity: this is FLOP for each number, not for each byte",
    one_way="intensity: this counts only what is read, or only what is written",
)


@check_of(MISTAKES, ranks=1)
def predict_softmax(check: Check) -> str:
    """Compare with what torch's operations read and write."""
    with check.trial() as trial:
        for dtype in (torch.float32, torch.float16, torch.float64):
            # Several programs, and so few columns that each of `highest` and `total` is over 1 %.
            rows, columns = trial.draw.randrange(1501, 2500, 2), trial.draw.randrange(5, 10, 2)
            x = torch.ones(rows, columns, dtype=dtype)
            trial.situation = f"{rows} × {columns} numbers of {x.itemsize} bytes"
            right = measured(x)
            predicted = trial.run(rows, columns, x.itemsize)
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, wrong(right, x)),
                lambda: first_wrong(predicted, right),
            )
    return "(8MN + 4M) numbers moved by five operations, 2MN by one, 5MN FLOP; ⌈MN/1024⌉ programs"


def measured(x: torch.Tensor) -> dict[str, float]:
    with traffic() as eager:
        powers = (x - x.amax(1, keepdim=True)).exp()
        powers / powers.sum(1, keepdim=True)
    return {
        "eager": eager.bytes,
        "fused": 2 * x.nbytes,
        "intensity": 5 * x.numel() / (2 * x.nbytes),
        "programs": -(-x.numel() // 1024),
    }


def wrong(right: dict[str, float], x: torch.Tensor) -> list[tuple[str, float, Finding]]:
    table = [
        ("eager", right["eager"] / x.itemsize, "elements"),
        ("eager", 5 * x.nbytes + 2 * len(x) * x.itemsize, "reads_alone"),
        ("eager", 8 * x.nbytes, "columns_left_out"),
        ("eager", 10 * x.nbytes, "each_once"),
        ("fused", 2 * x.numel(), "elements"),
        ("fused", x.nbytes, "reads_alone"),
        ("intensity", 5, "for_each_number"),
        ("intensity", 5 / x.itemsize, "one_way"),
        ("programs", x.numel() // 1024, "rounded_down"),
    ]
    return [(name, value, getattr(MISTAKES, key)(name=name)) for name, value, key in table]
