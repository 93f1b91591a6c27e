"""Exercise `scaled_step`: steps whose gradients float16 cannot hold without a scale."""

from collections.abc import Iterator, Sequence
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_numbers, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.mixed_precision._weights import (
    Gradients,
    RecordingWeights,
    clipped,
    each,
    norm,
    one_step,
)

# Two tensors, one in each of the optimizer's groups, determine the norm. Without a scale, float16
# loses most gradients of the other tensors.
LARGE, SMALL = 2.0**-4, 2.0**-21
RATE = 2.0**16
SCALE = 2.0**17  # more than the largest float16 number
TOLERANCE = 1e-4
SECONDS = 20.0

MISTAKES = Mistakes(
    clipped_while_scaled=(
        "the gradients are clipped while they are scaled, but `max_norm` is for the true gradient. "
        "Unscale, then clip, then step"
    ),
    not_scaled=(
        "the backward pass ran without the scale, so gradients below 2⁻²⁵ became zero. Start it "
        "from `scale` times the loss"
    ),
    unscaled_in_16_bits=(
        "the gradients are divided in 16 bits, where small ones become zero again. Collect them "
        "into float32 first"
    ),
)

CASES = {  # max_norm divided by the norm, and a factor of the loss
    "max_norm is 0.25 times the norm": (0.25, 1.0),
    "max_norm is 4 times the norm": (4.0, 1.0),
    "all gradients are zero": (4.0, 0.0),
}


class Small(nn.Module):
    """A model with small and large gradients, and a parameter that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        self.gain = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(2))
        self.last = nn.Linear(1, 4, bias=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        large = self.gain.float().sum() + self.last.weight.float().sum()
        return F.cross_entropy(self.layers(x).float(), y) * SMALL + large * LARGE


@check_of(MISTAKES, ranks=1)
def scaled_step(check: Check) -> str:
    """Check two steps for each case, clipped and not."""
    with check.trial() as trial:
        for _, (factor, size) in trial.cases(CASES):
            model, x, y = drawn(trial.draw)
            weights = RecordingWeights(model, in_two_groups)
            for _ in range(2):
                scaled = gradients(model, x, y, size * SCALE)
                right = each(lambda g: g.float() / SCALE, scaled)
                max_norm = factor * norm(right) or 1.0
                plain = gradients(model, x, y, size)
                weights.forget()
                loss = model.loss(x, y) * size
                got = trial.run(weights, loss, SCALE, max_norm, seconds=SECONDS)
                trial.require(
                    lambda: has_type(got, float, "a Python float"),
                    lambda: settings(weights),
                    lambda: one_step(
                        weights,
                        clipped(right, max_norm),
                        wrong(scaled, plain, max_norm),
                        MISTAKES,
                        TOLERANCE,
                    ),
                    lambda: equal_numbers([got], [norm(right)], "the returned norm", 1e-5),
                )
    return "scaled in 16 bits, unscaled in float32, then clipped, then stepped"


def drawn(draw: Random) -> tuple[Small, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        return Small().half(), torch.randn(7, 6).half(), torch.randint(4, (7,))


def in_two_groups(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": list(parameters[:3])}, {"params": list(parameters[3:])}]
    return torch.optim.SGD(groups, lr=RATE)


def gradients(model: Small, x: Tensor, y: Tensor, factor: float) -> Gradients:
    """Return the float16 gradients of `factor` times the loss; None for `unused`."""
    loss = model.loss(x, y) * factor
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def settings(weights: RecordingWeights) -> Finding | None:
    """Require the same learning rates during the step and after it."""
    for rate in [*weights.rates, *(group["lr"] for group in weights.optimizer.param_groups)]:
        if rate != RATE:
            return observed(f"the learning rate is {rate:g}, expected {RATE:g}. Do not change it")
    return None


def wrong(scaled: Gradients, plain: Gradients, max_norm: float) -> Iterator[tuple[str, Gradients]]:
    """Yield the gradients with which each mistake steps."""
    clipped_scaled = clipped(each(Tensor.float, scaled), max_norm)
    yield "clipped_while_scaled", each(lambda g: g / SCALE, clipped_scaled)
    plain = each(Tensor.float, plain)
    yield "not_scaled", clipped(plain, max_norm)
    yield "not_scaled", each(lambda g: g / SCALE, plain)
    yield "unscaled_in_16_bits", clipped(each(lambda g: (g / SCALE).float(), scaled), max_norm)
