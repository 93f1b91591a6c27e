"""Exercise `predict_adam`."""

from collections.abc import Iterator

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.kernels.traffic import traffic

MISTAKES = Mistakes(
    one_tensor="launches: that is for one tensor: each has seven of its own",
    one_each="launches: that is one for each tensor: each operation is a kernel",
    elements="{name}: that counts numbers, not bytes",
    reads_alone="{name}: that is what is read; what is written moves too",
    two_each="eager: that is a read and a write for each operation; some read two or three tensors",
    gradient_written="{name}: that writes the gradient as well{other}",
    state_forgotten="{name}: that leaves out the moments, or reads them alone",
    all_halved="fused_bfloat16: the moments are float32 there",
    nothing_halved="fused_bfloat16: parameter and gradient have two bytes there",
)


@check_of(MISTAKES)
def predict_adam(check: Check) -> str:
    """Compare with what torch.optim.Adam really launches and moves."""
    with check.trial() as trial:
        # Not seven: one launch for each of them, and seven for one, would be the same number.
        for tensors in (trial.draw.choice([3, 4, 5, 6, 8, 9, 10, 11]), 1):
            trial.situation = f"{tensors} tensor" + "s" * (tensors > 1)
            right = measured(tensors)
            predicted = trial.run(tensors)
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, wrong_numbers(right, tensors)),
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

    def fused(dtype: torch.dtype) -> float:
        p, g = torch.ones(2, 50, dtype=dtype)
        m, v = torch.ones(2, 50)
        return (sum(t.nbytes for t in (p, g, m, v)) + sum(t.nbytes for t in (p, m, v))) / 50

    return {
        "launches": eager.operations,
        "eager": eager.bytes / (50 * tensors),
        "fused": fused(torch.float32),
        "fused_bfloat16": fused(torch.bfloat16),
    }


def wrong_numbers(right: dict[str, float], tensors: int) -> Iterator[Wrong]:
    if tensors > 1:
        yield "launches", 7, MISTAKES.one_tensor()
        yield "launches", tensors, MISTAKES.one_each()
    for name, numbers in (("eager", 18), ("fused", 7), ("fused_bfloat16", 7)):
        yield name, numbers, MISTAKES.elements(name=name)
    yield "eager", 4 * 11, MISTAKES.reads_alone(name="eager")
    yield "eager", 4 * 14, MISTAKES.two_each()
    yield "fused", 16, MISTAKES.reads_alone(name="fused")
    yield "fused", 32, MISTAKES.gradient_written(name="fused", other="")
    yield "fused", 12, MISTAKES.state_forgotten(name="fused")
    yield "fused", 20, MISTAKES.state_forgotten(name="fused")
    yield "fused_bfloat16", 14, MISTAKES.all_halved()
    yield "fused_bfloat16", 28, MISTAKES.nothing_halved()
    yield "fused_bfloat16", 12, MISTAKES.reads_alone(name="fused_bfloat16")
    other = ", or reads one of float32"
    yield "fused_bfloat16", 24, MISTAKES.gradient_written(name="fused_bfloat16", other=other)
