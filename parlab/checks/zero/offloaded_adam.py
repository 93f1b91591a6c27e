"""Exercise `offloaded_adam`."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed

MISTAKES = Mistakes(
    count_lost=(
        "the file counts {got} steps, expected {right}: a resumed run would correct the moments as "
        "if training had just begun. Keep the count in the file"
    ),
    not_in_the_file=(
        "the weights are right, but a moment in the file has not changed: work in place on views "
        "of self.mean and self.square, or write the result back"
    ),
    last_piece="the last elements have not moved: the last piece may be shorter than the others",
    all_in_memory=(
        "step() has {got} bytes of new tensors at once, expected a few pieces of {piece} bytes: "
        "bring in one piece at a time"
    ),
)
SIZE, PIECE = 1500, 64
SETTINGS: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}
WEIGHTS, MEAN, SQUARE = "the parameter", "the mean in the file", "the square in the file"
Record = dict[str, Any]  # these three tensors after a step, and what was measured in it


@check_of(MISTAKES, ranks=1)
def offloaded_adam(check: Check) -> str:
    """Compare steps, resumed twice from the file, with torch's Adam, and measure their memory."""
    with check.trial() as trial, tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
        start, *gradients = torch.randn(7, SIZE, generator=generator)
        zeros = torch.zeros(SIZE)
        right = [{WEIGHTS: start, MEAN: zeros, SQUARE: zeros}, *adam_steps(start, gradients)]
        run = (check.function, start, gradients, Path(folder) / "states")
        for number, record in enumerate(trial.run_function(resumed_steps, *run, seconds=10.0), 1):
            trial.situation = f"step {number}, with object {(number + 1) // 2} on the file"
            trial.require(
                lambda: in_place(record),
                lambda: steps_counted(record["count"], number),
                lambda: values_are_right(record, right[number], right[number - 1]),
                lambda: few_pieces(record["peak"]),
            )
    return "Adam's steps, resumed from the file where they stopped, with a few pieces in memory"


def resumed_steps(make: Any, start: Tensor, gradients: list[Tensor], path: Path) -> list[Record]:
    """Take two steps with each of three objects that use the same file."""
    parameter, records = nn.Parameter(start.clone()), []
    for number, gradient in enumerate(gradients):
        if number % 2 == 0:
            optimizer = make(parameter, path, piece=PIECE, **SETTINGS)
        parameter.grad = gradient.clone()
        address = parameter.data_ptr()
        with memory.Peak() as peak:
            optimizer.step()
        file = torch.from_numpy(np.fromfile(path, dtype=np.float32))
        mean, square, count = file.split([SIZE, SIZE, 1])
        record = {WEIGHTS: parameter.detach().clone(), MEAN: mean, SQUARE: square}
        record |= {"count": count.item(), "peak": peak.bytes}
        record["moved"] = parameter.data_ptr() != address
        kept = parameter.grad is not None and torch.equal(parameter.grad, gradient)
        record["gradient_kept"] = kept
        records.append(record)
    return records


def adam_steps(start: Tensor, gradients: list[Tensor]) -> list[Record]:
    """Take the same steps with torch's Adam."""
    parameter, records = nn.Parameter(start.clone()), []
    adam = torch.optim.Adam([parameter], **SETTINGS)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        adam.step()
        state = adam.state[parameter]
        values = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
        copies = (value.clone() for value in values)
        records.append(dict(zip((WEIGHTS, MEAN, SQUARE), copies, strict=True)))
    return records


def in_place(record: Record) -> Finding | None:
    if record["moved"]:
        return observed("the parameter is in other memory than before: update it in place")
    if not record["gradient_kept"]:
        return COMMON.argument_changed(name="`self.parameter.grad`")
    return None


def steps_counted(got: float, right: int) -> Finding | None:
    if got == right:
        return None
    if got == (right - 1) % 2 + 1:  # what this object has counted
        return MISTAKES.count_lost(got=int(got), right=right)
    return observed(f"the file counts {got:g} steps, expected {right}")


def values_are_right(record: Record, right: Record, before: Record) -> Finding | None:
    whole = SIZE // PIECE * PIECE
    wrong = {key: {"not_in_the_file": before[key]} for key in (MEAN, SQUARE)}
    weights = {"last_piece": torch.cat([right[WEIGHTS][:whole], before[WEIGHTS][whole:]])}
    for name, variants in ({WEIGHTS: weights} | wrong).items():
        if finding := explained(record[name], right[name], variants, MISTAKES, name, 1e-4):
            return finding
    return None


def few_pieces(got: int) -> Finding | None:
    return MISTAKES.all_in_memory(got=got, piece=4 * PIECE) if got > 12 * 4 * PIECE else None
