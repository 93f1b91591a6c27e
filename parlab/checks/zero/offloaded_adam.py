"""Exercise `offloaded_adam`."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parlab import memory
from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.zero.training import SECONDS

MISTAKES = Mistakes(
    count_lost=(
        "the file counts {got} steps where {right} were taken: who resumes from it corrects the "
        "moments as if training had just begun. The count belongs into the file, as the moments do"
    ),
    count_each_piece=(
        "the file counts {got} steps where {right} were taken: count once a step, not once a piece"
    ),
    not_in_the_file=(
        "the weights are right, and the moments in the file are not: work in place on views of "
        "self.mean and self.square, or write the result back"
    ),
    not_corrected=(
        "the first step is another one than Adam's: divide the moments by 1 − βᵗ. They begin at "
        "zero, and would be too small"
    ),
    betas_swapped=(
        "the moments in the file are those of the other beta: `betas` are β₁, of the mean, and β₂, "
        "of the square"
    ),
    wrong_way="the weights go up the gradient: a step is subtracted",
    eps_inside="ε is under the root: it is added to the root",
    last_piece="the last numbers have not moved: the last piece may be shorter than the others",
    all_in_memory=(
        "within step() it has {got} bytes at once, where some pieces of {piece} bytes are enough: "
        "bring in one piece at a time"
    ),
    new_memory="the parameter lies in other memory now: update it in place",
)

SIZE, PIECE = 5000, 64
BETAS = 0.8, 0.95


@dataclass
class Done:
    weights: Tensor
    file: np.ndarray
    peak: int
    in_place: bool
    gradient_kept: bool


@check_of(MISTAKES)
def offloaded_adam(check: Check) -> str:
    """Check steps, resumed twice from the file, against torch's Adam; and what they take."""
    with check.trial() as trial, tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
        start = torch.randn(SIZE, generator=generator)
        gradients = [torch.randn(SIZE, generator=generator) for _ in range(6)]
        settings = {"lr": 0.1, "betas": BETAS, "eps": 1e-3}
        right = _library(start, gradients, settings)
        done = trial.run_function(
            _resumed,
            trial.check.function,
            start,
            gradients,
            Path(folder),
            settings,
            seconds=SECONDS,
        )
        for number in range(len(gradients)):
            run = number // 2
            trial.situation = f"step {number + 1}" + (
                f", the file opened {run + 1} times" * bool(run)
            )
            trial.require(
                lambda: in_place(done[number]),
                lambda: gradient_kept(done[number]),
                lambda: counted(done[number], number + 1),
                lambda: values(done[number], right[number], start, number, settings),
                lambda: moments(done[number], right[number], done[number - 1] if number else None),
                lambda: small(done[number]),
            )
    return "Adam's steps, resumed from the file where they stopped, with a few pieces in memory"


def _resumed(
    make: Any, start: Tensor, gradients: list[Tensor], folder: Path, settings: dict
) -> list[Done]:
    """Two steps with each of three objects over one file; after each step, what there is."""
    parameter, done = nn.Parameter(start.clone()), []
    path = folder / "states"
    for number, gradient in enumerate(gradients):
        if number % 2 == 0:
            optimizer = make(parameter, path, piece=PIECE, **settings)
        parameter.grad = gradient.clone()
        address = parameter.data_ptr()
        with memory.Peak() as peak:
            optimizer.step()
        file = np.fromfile(path, dtype=np.float32)
        in_place = address == parameter.data_ptr()
        kept = parameter.grad is not None and torch.equal(parameter.grad, gradient)
        done.append(Done(parameter.detach().clone(), file, peak.bytes, in_place, kept))
    return done


def _library(
    start: Tensor, gradients: list[Tensor], settings: dict
) -> list[tuple[Tensor, Tensor, Tensor]]:
    parameter = nn.Parameter(start.clone())
    adam, after = torch.optim.Adam([parameter], **settings), []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        adam.step()
        state = adam.state[parameter]
        after.append(
            (parameter.detach().clone(), state["exp_avg"].clone(), state["exp_avg_sq"].clone())
        )
    return after


def in_place(done: Done) -> Finding | None:
    return None if done.in_place else MISTAKES.new_memory()


def gradient_kept(done: Done) -> Finding | None:
    return None if done.gradient_kept else COMMON.argument_changed(name="`self.parameter.grad`")


def counted(done: Done, right: int) -> Finding | None:
    if len(done.file) < 2 * SIZE + 1:
        return evidence(f"the file has {len(done.file)} numbers, not {2 * SIZE + 1}")
    got = done.file[2 * SIZE]
    if got == right:
        return None
    if got == right * -(-SIZE // PIECE):
        return MISTAKES.count_each_piece(got=int(got), right=right)
    return MISTAKES.count_lost(got=f"{got:g}", right=right)


def values(
    done: Done, right: tuple[Tensor, Tensor, Tensor], start: Tensor, number: int, settings: dict
) -> Finding | None:
    weights = right[0]
    if same(done.weights, weights, 1e-4):
        return None
    whole = SIZE // PIECE * PIECE
    if same(done.weights[:whole], weights[:whole], 1e-4) and same(
        done.weights[whole:], start[whole:]
    ):
        return MISTAKES.last_piece()
    if number == 0:
        for other, finding in _other_first_steps(start, right, settings):
            if same(done.weights, other, 1e-4):
                return finding()
    return equal(done.weights, weights, "the parameter", 1e-4)


def _other_first_steps(
    start: Tensor, right: tuple[Tensor, Tensor, Tensor], settings: dict
) -> list[tuple[Tensor, Callable[[], Finding]]]:
    weights, mean, square = right
    lr, (beta_1, beta_2), eps = settings["lr"], settings["betas"], settings["eps"]
    uncorrected = start - lr * mean / (square.sqrt() + eps)
    inside = start - lr * (mean / (1 - beta_1)) / (square / (1 - beta_2) + eps).sqrt()
    return [
        (uncorrected, MISTAKES.not_corrected),
        (2 * start - weights, MISTAKES.wrong_way),
        (inside, MISTAKES.eps_inside),
    ]


def moments(
    done: Done, right: tuple[Tensor, Tensor, Tensor], before: Done | None
) -> Finding | None:
    for name, start, moment, beta, other in (
        ("mean", 0, right[1], *BETAS),
        ("square", SIZE, right[2], *BETAS[::-1]),
    ):
        got = torch.from_numpy(done.file[start : start + SIZE])
        old = torch.zeros(SIZE) if before is None else before.file[start : start + SIZE]
        if same(got, moment, 1e-4):
            continue
        if same(got, old):
            return MISTAKES.not_in_the_file()
        if before is None and same(got, moment * (1 - other) / (1 - beta), 1e-4):
            return MISTAKES.betas_swapped()
        return equal(got, moment, f"the {name} in the file", 1e-4)
    return None


def small(done: Done) -> Finding | None:
    if done.peak > 12 * 4 * PIECE:
        return MISTAKES.all_in_memory(got=done.peak, piece=4 * PIECE)
    return None
