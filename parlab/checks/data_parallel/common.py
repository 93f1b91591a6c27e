"""What the checks of this lab share: awkward models, their states, comparisons in words."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.ledger import Ledger
from parlab.models import Awkward

State = dict[str, Tensor]

# Checks compute in float64, where the order of a sum changes the sixteenth digit: what differs in
# the ninth is wrong, and not rounding.
TOLERANCE = 1e-9


def awkward_model(shape_seed: int, value_seed: int) -> Awkward:
    """A float64 `Awkward` of an odd size; ranks with one `shape_seed` have equal shapes."""
    draw = random.Random(shape_seed)
    vocab_size, hidden_size = draw.randrange(11, 19, 2), draw.randrange(5, 12, 2)
    state = torch.get_rng_state()
    torch.manual_seed(value_seed)
    model = Awkward(vocab_size, hidden_size).double()
    torch.set_rng_state(state)
    return model


def tokens_for(model: Awkward, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random inputs and targets, both (samples,) int64."""
    generator = torch.Generator().manual_seed(seed)
    shape, vocab_size = (2, samples), model.embed.num_embeddings
    inputs, targets = torch.randint(vocab_size, shape, generator=generator)
    return inputs, targets


def gradients(model: Awkward, inputs: Tensor, targets: Tensor) -> State:
    """Gradients of the mean loss by parameter name, zeros where there is none; `.grad` stays.

    With no samples all are zeros. Frozen parameters are left out.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not len(inputs):
        return {name: torch.zeros_like(p) for name, p in trainable.items()}
    loss = F.cross_entropy(model(inputs), targets)
    found = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    return {
        name: torch.zeros_like(trainable[name]) if gradient is None else gradient
        for name, gradient in zip(trainable, found, strict=True)
    }


def state_of(model: nn.Module) -> State:
    """Copies of parameters and buffers by name, a tied one under its first name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def gradients_of(model: nn.Module) -> State:
    """Copies of the `.grad` of trainable parameters; zeros for None."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad.clone()).detach()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape agree up to rounding."""
    return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)


def all_equal(a: State, b: State) -> bool:
    return all(equal(a[name], b[name]) for name in a)


def add(states: list[State], weights: list[float]) -> State:
    """The weighted sum of several states."""
    return {
        name: sum(w * state[name] for w, state in zip(weights, states, strict=True))
        for name in states[0]
    }


def first_difference(got: State, right: State) -> str | None:
    """The first value that differs, in words; None when all agree."""
    for name, tensor in right.items():
        wrong = torch.argwhere(~torch.isclose(got[name], tensor, rtol=TOLERANCE, atol=TOLERANCE))
        if len(wrong):
            index = tuple(int(i) for i in wrong[0])
            return (
                f"the gradient of {name} at {index} is {got[name][index]:.6g} where "
                f"{tensor[index]:.6g} is right"
            )
    return None


def on(world_size: int) -> str:
    """`on 1 rank`, `on 2 ranks`."""
    return f"on {world_size} rank" + "s" * (world_size != 1)


def unused_or_pickled(ledger: Ledger) -> str | None:
    """Calls that a communicator did not get, or got in small letters."""
    if not ledger.count():
        return "nothing went through the communicator that the function was given: use `comm`"
    for call in ledger.calls:
        if call.api[0].islower():
            return (
                f"comm.{call.api}, in small letters, pickles Python objects: "
                f"comm.{call.api.capitalize()} sends a tensor's memory as it is"
            )
    return None
