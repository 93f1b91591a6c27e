"""Exercise `predict_adam`."""

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import first_wrong, form, misconception
from parlab.kernels.traffic import traffic

MISTAKES = Mistakes(
    one_tensor="launches: this is the number for one tensor. Each tensor has its own seven",
    elements="{name}: this counts numbers, not bytes",
    reads_alone="{name}: this counts only what is read. Add what is written",
    two_each="eager: this counts one read and one write for each operation. Some read two or three",
    gradient_written="{name}: this counts a write of the gradient, which stays as it is",
    all_halved="fused_bfloat16: the moments stay float32",
    nothing_halved="fused_bfloat16: parameters and gradients have two bytes each",
)
WRONG = [
    ("launches", 7, "one_tensor"),
    ("eager", 18, "elements"),
    ("eager", 4 * 11, "reads_alone"),
    ("eager", 4 * 14, "two_each"),
    ("fused", 7, "elements"),
    ("fused", 4 * 4, "reads_alone"),
    ("fused", 4 * 8, "gradient_written"),
    ("fused_bfloat16", 14, "all_halved"),
    ("fused_bfloat16", 28, "nothing_halved"),
]


@check_of(MISTAKES, ranks=1)
def predict_adam(check: Check) -> str:
    """Compare with what torch.optim.Adam launches and moves."""
    with check.trial() as trial:
        # With seven tensors, a launch for each tensor would look like seven in all.
        several = trial.draw.choice([3, 4, 5, 6, 8, 9, 10, 11])
        for _, tensors in trial.cases({f"{several} tensors": several, "1 tensor": 1}):
            right = measured(tensors)
            predicted = trial.run(tensors)
            wrong = [(name, value, getattr(MISTAKES, key)(name=name)) for name, value, key in WRONG]
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, wrong),
                lambda: first_wrong(predicted, right),
            )
    return "seven launches a tensor; 72 bytes a parameter, 28 fused, 22 in bfloat16"


def measured(tensors: int) -> dict[str, float]:
    parameters = [torch.nn.Parameter(torch.ones(50)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.ones(50)
    optimizer = torch.optim.Adam(parameters, foreach=False)
    optimizer.step()
    with traffic() as eager:
        optimizer.step()
    per_parameter = eager.bytes / (50 * tensors)
    # The kernel reads parameter, gradient, and moments, and writes all but the gradient.
    fused = {"fused": 4 * (4 + 3), "fused_bfloat16": 2 * (2 + 1) + 4 * (2 + 2)}
    return {"launches": eager.operations, "eager": per_parameter, **fused}
