"""The training that `sharded_master_weights` must match: its models, steps, and reference."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from parlab.checks.base.trial import Trial
from parlab.models import Awkward

SCALE = 2.0**8
LOOSE = 100.0  # max_norm divided by the norm, if nothing is clipped

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


# Each step's max_norm divided by the norm, and what is special about its gradients: an infinity or
# NaN on one rank, a parameter without gradient on all ranks, or a number that is too large for a
# sum in 16 bits, or for float16.
Plan = tuple[float, str]
PLANS: dict[str, Plan] = {
    "step 1": (LOOSE * SCALE, ""),  # max_norm is above the scaled norm too
    "step 2, a parameter has no gradient": (0.3, "missing"),
    "step 3, an infinity on one rank": (LOOSE, "inf"),
    "step 4": (0.5, ""),
    "step 5, a NaN on one rank": (LOOSE, "nan"),
    "step 6, a large gradient": (0.5, "large"),
    "step 7, all gradients are zero": (LOOSE, "zero"),
    "step 8": (LOOSE, ""),
}


def awkward(trial: Trial, dtype: torch.dtype) -> nn.Module:
    """Draw a model whose number of parameters is not a multiple of the number of ranks."""
    while True:
        with torch.random.fork_rng(devices=[]):
            vocab, hidden = trial.draw.randrange(30, 50), trial.draw.randrange(17, 30)
            torch.manual_seed(trial.draw.getrandbits(32) + trial.rank)
            model = Awkward(vocab, hidden).to(dtype)
        if trial.size == 1 or len(flat_of(model)) % trial.size:
            return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def flat_of(model: nn.Module) -> Tensor:
    """Return a copy of the trainable weights in one flat tensor."""
    return torch.cat([p.detach().flatten() for p in trainable(model)])


class Serial:
    """The training on one rank, with all master weights."""

    def __init__(self, start: Tensor, make: MakeOptimizer, ranks: int) -> None:
        self.dtype, self.ranks, self.width = start.dtype, ranks, -(-len(start) // ranks)
        self.master = nn.Parameter(start.float())
        self.optimizer = make([self.master])

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Pad a flat tensor with zeros, and cut it into equal parts."""
        padding = flat.new_zeros(self.width * self.ranks - len(flat))
        return list(torch.cat([flat.detach(), padding]).chunk(self.ranks))

    def after(self, gradient: Tensor) -> "Serial":
        """Return a copy that has taken a step."""
        other = copy.deepcopy(self)
        other.master.grad = gradient
        other.optimizer.step()
        other.master.grad = None
        return other


def drawn(trial: Trial, special: str, like: Tensor, scale: float) -> Tensor:
    """Draw scaled gradients (ranks, numbers) of few bits, so the mean is exact in any order."""
    ranks, numbers = trial.size, len(like)
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    limit = max(1, 60 // ranks)
    small = torch.randint(-limit, limit + 1, (ranks, numbers), generator=generator)
    gradients = (small * ranks * scale * 2.0**-10).to(like.dtype)
    rank, place = trial.draw.randrange(ranks), trial.draw.randrange(numbers)
    if special == "large":
        largest = math.floor(math.log2(65504 / ranks)) if like.dtype == torch.float16 else 20
        gradients[:, place] = ranks * 2.0**largest
    if special in ("inf", "nan"):
        gradients[rank, place] = float(special)
    return gradients * (special != "zero")
