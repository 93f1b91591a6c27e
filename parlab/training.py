"""Trains on one rank, as a reference for the labs' parallel runs.

batches = mnist_batches(2560, 256, device)
curves = {"one rank": plain_losses(models.mlp().to(device), OPTIMIZERS["Adam"], batches)}
curves["stage 1"] = …                      # the same batches, on all ranks
# The next line prints "Adam: same losses in each step, stage 1 and one rank: True".
print_same({"Adam": curves}, 1e-4)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.data import mnist, text

Batch = tuple[Tensor, Tensor]
MakeOptimizer = Callable[..., torch.optim.Optimizer]

# Settings with which the labs' MLP and GPT learn in a few steps.
OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
}
GPT_OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=3e-3),
}


def mnist_batches(samples: int, batch_size: int, device: torch.device | None = None) -> list[Batch]:
    """Return the first training images and their labels in batches.

    Images have shape (batch, 1, 28, 28) and dtype float32, and labels (batch,) and int64. The last
    batch is smaller if `batch_size` does not divide `samples`.
    """
    images, labels = (torch.from_numpy(part).to(device) for part in mnist("train", limit=samples))
    return list(zip(images.split(batch_size), labels.split(batch_size), strict=True))


def text_batches(
    batches: int, batch_size: int, sequence_length: int, device: torch.device | None = None
) -> list[Batch]:
    """Return batches of training text: tokens, and for each token the next one.

    Both have shape (batch_size, sequence_length) and dtype int64. Each token is a byte.
    """
    window = sequence_length + 1
    tokens = torch.from_numpy(text("train", batches * batch_size * window).astype("int64"))
    windows = tokens.view(-1, window).to(device).split(batch_size)
    return [(batch[:, :-1], batch[:, 1:]) for batch in windows]


def generator_states() -> list[Tensor]:
    """Return the state of the CPU's random generator and, if this rank uses a GPU, of the GPU's.

    Dropout draws from the generator of the device that its input is on.
    """
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def set_generator_states(states: Sequence[Tensor]) -> None:
    """Set the generators to states that `generator_states` has returned."""
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats per token, of scores (batch, seq, vocab)."""
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


def plain_losses(
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    batches: Iterable[Batch],
    loss_function: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> list[float]:
    """Train on one rank, without any parallelism. Return the loss before each step."""
    optimizer = make_optimizer(model.parameters())
    return [one_step(model, optimizer, *batch, loss_function) for batch in batches]


def one_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    loss_function: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    after_backward: Callable[[], object] | None = None,
) -> float:
    """Take one training step. Return the loss before it.

    `after_backward` is called between the backward pass and the optimizer's step.
    """
    optimizer.zero_grad()
    loss = loss_function(model(inputs), targets)
    loss.backward()
    if after_backward is not None:
        after_backward()
    optimizer.step()
    return loss.item()


def largest_gap(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference of two runs' losses in a step, or NaN if a loss is NaN."""
    gaps = torch.tensor(losses, dtype=torch.float64) - torch.tensor(others, dtype=torch.float64)
    return gaps.abs().max().item()


def print_same(panels: Mapping[str, Mapping[str, Sequence[float]]], tolerance: float) -> None:
    """Print for each panel whether its runs have the same losses as its first run in each step.

    Args:
        panels: by title, each run's losses by its name, as for `plots.same_curves`.
        tolerance: the largest difference that counts as the same loss.
    """
    for title, runs in panels.items():
        first, *others = runs
        for name in others:
            same = largest_gap(runs[name], runs[first]) < tolerance
            print(f"{title}: same losses in each step, {name} and {first}: {same}")
