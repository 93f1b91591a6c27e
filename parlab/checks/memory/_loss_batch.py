"""Inputs for the check of a loss over a vocabulary, and F.cross_entropy's results in float64."""

from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 1e-5  # float32, added in another order
IGNORED = -100
Gradients = list[Tensor | None]


@dataclass(frozen=True)
class Case:
    """What is drawn for a case, and how the function is called."""

    tokens: int = 37
    chunk: int = 8
    ignored: tuple[int, ...] = ()  # tokens whose target is ignored
    factor: float = 1.0  # of the loss
    size: float = 1.0  # of the logits
    tied: bool = False
    needs_gradient: tuple[bool, bool] = (True, True)  # the hidden states, the weight
    vocabulary: int = 11
    hidden: int = 6

    @property
    def tolerance(self) -> float:
        """Of the largest number. Large logits in float32 have fewer digits after the point."""
        return TOLERANCE * max(1.0, self.size)


@dataclass
class Batch:
    """Inputs of the function; with tied weights, `hidden` is None and comes from `weight`."""

    hidden: Tensor | None
    weight: Tensor
    targets: Tensor
    tokens: Tensor  # of the embedding

    def leaves(self, case: Case, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        tensors = [self.weight] if case.tied else [self.hidden, self.weight]
        needed = [True] if case.tied else case.needs_gradient
        copies = [t.detach().to(dtype, copy=True) for t in tensors]
        return tuple(c.requires_grad_(n) for c, n in zip(copies, needed, strict=True))


def drawn(draw: Random, case: Case) -> Batch:
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    hidden = torch.randn(case.tokens, case.hidden, generator=generator) * case.size
    weight = torch.randn(case.vocabulary, case.hidden, generator=generator)
    words = torch.randint(case.vocabulary, (2, case.tokens), generator=generator)
    words[0, list(case.ignored)] = IGNORED
    return Batch(None if case.tied else hidden, weight, words[0], words[1])


def inputs(leaves: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the hidden states and the weight; a tied weight also gives the hidden states."""
    return leaves if len(leaves) == 2 else (torch.tanh(leaves[0][batch.tokens]), leaves[0])


def token_losses(leaves: tuple[Tensor, ...], batch: Batch) -> Tensor:
    """Return the loss of each token; 0 if its target is ignored."""
    hidden, weight = inputs(leaves, batch)
    return F.cross_entropy(hidden @ weight.T, batch.targets, reduction="none")


def plain_step(
    batch: Batch, case: Case, factor: float = 1.0, first: int = 0
) -> tuple[Tensor, Gradients]:
    """Return loss and gradients in float64, of the loss times `factor`.

    With `first`, only the tokens from there on contribute.
    """
    leaves = batch.leaves(case, torch.float64)
    loss = token_losses(leaves, batch)[first:].sum() / (batch.targets != IGNORED).sum()
    (loss * factor).backward()
    return loss.detach(), copied(leaves)


def copied(leaves: tuple[Tensor, ...]) -> Gradients:
    return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
