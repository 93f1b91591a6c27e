"""Exercise `predict_fusion`."""

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.predictions import require_numbers
from parlab.kernels.traffic import traffic

MISTAKES = Mistakes(
    elements="{name}: this counts numbers, not bytes",
    reads_alone="{name}: this counts only what is read. Add what is written",
    each_once=(
        "{name}: this counts one read and one write of a tensor for each operation. Some read "
        "several, and a sum or maximum writes one number for each row"
    ),
    gradient_written="{name}: this counts a write of the gradient, which stays as it is",
)
PARAMETERS = 50


@check_of(MISTAKES, ranks=1)
def predict_fusion(check: Check) -> str:
    """Compare with what torch's operations read and write."""
    with check.trial() as trial:
        for dtype in (torch.float32, torch.float16, torch.float64):
            # There are so few columns that `highest` and `total` each take more than 1%.
            rows, columns = trial.draw.randrange(501, 999), trial.draw.randrange(5, 10)
            x = torch.ones(rows, columns, dtype=dtype)
            trial.situation = f"{rows} × {columns} numbers of {x.itemsize} bytes"
            right = measured(x)
            predicted = trial.run(rows, columns, x.itemsize)
            require_numbers(trial, predicted, right, wrong(right, x))
    return "(8MN + 4M) numbers by five operations, 2MN by one; for Adam, 72 bytes and 28"


def measured(x: torch.Tensor) -> dict[str, float]:
    with traffic() as softmax:
        powers = (x - x.amax(1, keepdim=True)).exp()
        powers / powers.sum(1, keepdim=True)
    parameter = torch.nn.Parameter(torch.ones(PARAMETERS))
    parameter.grad = torch.ones(PARAMETERS)
    optimizer = torch.optim.Adam([parameter], foreach=False)
    optimizer.step()
    with traffic() as adam:
        optimizer.step()
    return {
        "softmax": softmax.bytes,
        "softmax_fused": 2 * x.nbytes,
        "intensity": 5 * x.numel() / (2 * x.nbytes),
        "adam": adam.bytes / PARAMETERS,
        # The kernel reads parameter, gradient, and moments, and writes all but the gradient.
        "adam_fused": 4 * (4 + 3),
    }


def wrong(right: dict[str, float], x: torch.Tensor) -> list[tuple[str, float, Finding]]:
    table = [
        ("softmax", right["softmax"] / x.itemsize, "elements"),
        ("softmax", 5 * x.nbytes + 2 * len(x) * x.itemsize, "reads_alone"),
        ("softmax", 10 * x.nbytes, "each_once"),
        ("softmax_fused", 2 * x.numel(), "elements"),
        ("softmax_fused", x.nbytes, "reads_alone"),
        ("adam", 18, "elements"),
        ("adam", 4 * 11, "reads_alone"),
        ("adam", 4 * 14, "each_once"),
        ("adam_fused", 7, "elements"),
        ("adam_fused", 4 * 4, "reads_alone"),
        ("adam_fused", 4 * 8, "gradient_written"),
    ]
    return [(name, value, getattr(MISTAKES, key)(name=name)) for name, value, key in table]
