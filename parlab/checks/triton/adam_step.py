"""Exercise `adam_step`."""

from dataclasses import astuple, replace
from functools import partial
from random import Random

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.triton import _adam, _kernels
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    eps_inside="ε is inside the root. Add it to √(v / (1 − β₂ᵗ))",
    no_correction="the moments are not divided by 1 − βᵗ",
    coupled=(
        "λw goes into the gradient, and so into the moments. With decoupled weight decay, subtract "
        "ηλw from the weights instead"
    ),
    decoupled="the weights decay directly. Without `decoupled`, add λw to the gradient instead",
)


def cases(draw: Random) -> dict[str, tuple]:
    """Return shape, dtype, step, and weight decay by name."""
    table = [
        ((1024,), torch.float32, 3, "no"),
        ((1,), torch.float32, 1, "no"),
        ((1025,), torch.float32, 1, "no"),  # one more than blocks have
        ((7, draw.randrange(30, 60)), torch.float32, 2, "coupled"),
        ((3, 5, draw.randrange(30, 60)), torch.float32, 4, "decoupled"),
        ((1100,), torch.float16, 2, "coupled"),
        ((draw.randrange(600, 900),), torch.bfloat16, 5, "decoupled"),
    ]
    return _kernels.named("shape {}, {}, step {}, {} weight decay", table)


@check_of(MISTAKES, ranks=1)
def adam_step(check: Check) -> str:
    """Check single steps with many shapes and settings, with guards around all memory."""
    with check.trial() as trial:
        for _, (shape, dtype, step, decay) in trial.cases(cases(trial.draw)):
            of = _adam.random_settings(trial.draw, decay)
            arena, before = Arena(device), _adam.random_state(trial, shape, dtype, step)
            now = _adam.placed(arena, before)
            right, wrong = _adam.stepped(before, of), variants(before, of)
            call = _kernels.run(trial, arena, now.p, now.g, now.m, now.v, step, *astuple(of))
            trial.require(
                lambda: _kernels.one_launch_inside(call, "gradient"),
                lambda: _kernels.explained(
                    partial(_adam.compare_step, now.changing), right, wrong, MISTAKES
                ),
                lambda: _adam.moved_once(call, now),
            )
    return (
        "one launch for parameter and moments, in place; both kinds of weight decay, three dtypes"
    )


def variants(state: _adam.State, of: _adam.Settings) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return what each mistake computes."""
    other_decay = replace(of, decoupled_weight_decay=not of.decoupled_weight_decay)
    return {
        "eps_inside": _adam.stepped(state, of, eps_inside=True),
        "no_correction": _adam.stepped(replace(state, step=10**6), of),
        "coupled" if of.decoupled_weight_decay else "decoupled": _adam.stepped(state, other_decay),
    }
