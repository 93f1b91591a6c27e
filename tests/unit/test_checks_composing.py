"""The models that the checks of chapter 10 draw."""

import copy

import torch
from torch import Tensor

from parlab import training
from parlab.checks.composing import _steps as steps
from parlab.models import GPT


class Alone:
    """A group of one rank."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def test_drawn_models_have_small_rounding_errors() -> None:
    """A right pass in float32 is within half of TOLERANCE.

    A layer norm over four features exceeds it for seed 351.
    """
    for seed in range(300, 400):
        _, model = steps.stage_of({"dp": 1, "pp": 1, "tp": 1}, 0, {"tp": Alone()}, seed)
        draw = torch.Generator().manual_seed(seed)
        tokens, targets = torch.randint(11, (2, 1, 5), generator=draw)
        exact = _gradients(copy.deepcopy(model).double(), tokens, targets)
        errors = (_gradients(model, tokens, targets) - exact).abs() / (1 + exact.abs())
        assert errors.max() < steps.TOLERANCE / 2, seed


def _gradients(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    training.token_loss(model(tokens), targets).backward()
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])
