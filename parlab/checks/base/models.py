"""Data for the models that checks train, their losses and gradients, and their tensors by name."""

from collections.abc import Sequence
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]
Shard = tuple[Tensor, Tensor]  # inputs and targets

# Checks compute in float64. There, the order of a sum changes only the sixteenth digit, so a
# difference in the ninth digit is an error, not rounding.
TOLERANCE = 1e-9


def tokens(draw: Random, model: nn.Module, samples: int) -> Shard:
    """Draw inputs and targets, both (samples,) int64, for a `model` with a layer `embed`."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    shape, vocab_size = (2, samples), model.embed.num_embeddings
    inputs, targets = torch.randint(vocab_size, shape, generator=generator)
    return inputs, targets


def uneven_shards(draw: Random, ranks: int) -> list[list[int]]:
    """Return two lists of sample counts by rank: all different, and the same with 0 at the end.

    With one rank, return only the first list.
    """
    samples = draw.sample(range(1, 2 * ranks + 2), ranks)
    return [samples] if ranks == 1 else [samples, [*samples[:-1], 0]]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name. Tied ones have their first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> State:
    """Return the gradients of the mean loss by name; zeros for parameters without a gradient.

    The parameters' `.grad` does not change.
    """
    parameters = trainable(model)
    if not len(inputs):
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    loss = F.cross_entropy(model(inputs), targets)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if gradient is None else gradient
        for (name, p), gradient in zip(parameters.items(), found, strict=True)
    }


def loss_sum(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return the sum, not the mean, of the samples' losses."""
    with torch.no_grad():
        return F.cross_entropy(model(inputs), targets, reduction="sum").item()


def add(states: Sequence[State], weights: Sequence[float]) -> State:
    """Return the weighted sum of several states."""
    return {
        name: sum(w * state[name] for w, state in zip(weights, states, strict=True))
        for name in states[0]
    }


def state_of(model: nn.Module) -> State:
    """Return copies of parameters and buffers, by name. Tied ones have their first name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}
