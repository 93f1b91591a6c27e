"""Exercise `train`: the learning curve of one rank, step by step, on any number of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parlab.checks.base import Check, fresh_seed, gather
from parlab.checks.data_parallel.common import State, awkward_model, on, state_of, tokens_for
from parlab.checks.mpi.trial import global_names

# Losses of float64 runs may differ by the order of sums, which training amplifies a little.
TOLERANCE = 1e-7


@dataclass(frozen=True)
class Run:
    """A training run: `size` samples in global batches of `batch_size`."""

    size: int
    batch_size: int
    epochs: int

    @property
    def steps_an_epoch(self) -> int:
        return -(-self.size // self.batch_size)


# One step an epoch: no shuffle matters, and 1 to 6 ranks share the samples evenly.
WHOLE = Run(60, 60, epochs=3)
# Five steps an epoch, the last on 5 samples.
BATCHES = Run(53, 12, epochs=2)

Optimizers = dict[str, Callable[..., torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.2, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.01),
}


def train(function: Callable[..., list[float]]) -> None:
    """Check full-batch runs against a plain loop, and mini-batch runs against one rank's."""
    check = Check("train")
    compare = partial(_compare, check, _globals_text(function))
    seed = fresh_seed()
    for name, make_optimizer in OPTIMIZERS.items():
        curves: dict[int, list[float]] = {}
        for world_size in range(1, check.world_size + 1):
            situation = f"{name} {on(world_size)}"
            trained = partial(_run, check, function, make_optimizer, seed, world_size, situation)
            losses, state = trained(WHOLE)
            right, right_state = _serial(make_optimizer, seed)
            compare(WHOLE, situation, losses, right, "a plain PyTorch loop")
            _states(check, situation, state, right_state)
            curves[world_size], _ = trained(BATCHES)
            compare(BATCHES, situation, curves[world_size], curves[1], "a single rank")
    check.passed(f"the same losses, step by step, on 1 to {check.world_size} ranks, SGD and Adam")


def _data(seed: int, size: int) -> tuple[Tensor, Tensor]:
    return tokens_for(awkward_model(seed, seed), size, seed)


def _run(
    check: Check,
    function: Callable[..., list[float]],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    seed: int,
    world_size: int,
    situation: str,
    run: Run,
) -> tuple[list[float], State]:
    """The learner's losses and final model on rank 0, the same on all, or the check fails."""
    with check.communicator(list(range(world_size))) as comm:
        model = awkward_model(seed, seed + check.rank)  # each rank starts from another seed
        optimizer = make_optimizer(model.parameters())
        losses = check.call(
            function, model, optimizer, *_data(seed, run.size), run.batch_size, run.epochs, comm,
            comm=comm, situation=f"with {situation}", seconds=20,
        )  # fmt: skip
        steps = run.epochs * run.steps_an_epoch
        check.agree(_form(losses, steps) if comm else None, among=world_size, comm=comm)
    everyone: list[Any] = gather((losses, state_of(model)))[:world_size]
    first_losses, first_state = everyone[0]
    for rank, (other_losses, other_state) in enumerate(everyone):
        if (name := _apart(other_state, first_state)) is not None:
            check.fail(
                f"{situation}: after training, {name} on rank {rank} is not rank 0's: the models "
                "have drifted apart. Same start, same gradients, same steps?"
            )
        if not _close(other_losses, first_losses):
            check.fail(
                f"{situation}: rank {rank} returns other losses than rank 0: each is the loss on "
                "its own share. Sum share · loss over the ranks"
            )
    return first_losses, first_state


def _form(losses: Any, steps: int) -> str | None:
    if losses is None:
        return "it returns None: is a `return` missing?"
    if not isinstance(losses, list) or not all(isinstance(loss, float) for loss in losses):
        return "it must return a list of Python floats (`.item()` makes one of a tensor)"
    return None if len(losses) == steps else f"{len(losses)} losses for {steps} steps"


def _serial(
    make_optimizer: Callable[..., torch.optim.Optimizer], seed: int
) -> tuple[list[float], State]:
    """One epoch is one step on all samples: no shuffle can matter."""
    model = awkward_model(seed, seed)
    optimizer = make_optimizer(model.parameters())
    inputs, targets = _data(seed, WHOLE.size)
    losses = []
    for _ in range(WHOLE.epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state_of(model)


def _close(a: list[float], b: list[float]) -> bool:
    return all(abs(x - y) <= TOLERANCE for x, y in zip(a, b, strict=True))


def _globals_text(function: Callable[..., Any]) -> str:
    """Words for the case that the function asks the notebook who it is, and not `comm`."""
    used = sorted(global_names(function) & {"rank", "world_size"})
    if not used:
        return ""
    right = {"rank": "comm.rank", "world_size": "comm.size"}[used[0]]
    return f" It reads the global `{used[0]}`: use {right}, since `comm` need not hold all ranks."


def _compare(
    check: Check,
    note: str,
    run: Run,
    situation: str,
    got: list[float],
    right: list[float],
    whose: str,
) -> None:
    if _close(got, right):
        return
    step = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if not _close([a], [b]))
    check.fail(
        f"{situation}: the loss of step {step} is {got[step]:.6f} where {whose} has "
        f"{right[step]:.6f}.{note or ' ' + _cause(step, run)}"
    )


def _cause(step: int, run: Run) -> str:
    if step == 0:
        return (
            "Already the first loss is off: is it the loss before the step, from rank 0's start, "
            "over the whole global batch? Each rank on a shard of its own, its mean weighted with "
            "its share"
        )
    if run == BATCHES and (step + 1) % run.steps_an_epoch == 0:
        return "It is the last batch of an epoch, the uneven one: weight each rank with its share"
    if run == BATCHES and step % run.steps_an_epoch == 0:
        return (
            "It follows the last batch of an epoch, the uneven one: is every rank's gradient "
            "weighted with its share of that batch?"
        )
    return "The losses before it agree: look at the gradients. Weighted, summed, and zeroed?"


def _apart(a: State, b: State) -> str | None:
    for name in a:
        if not torch.allclose(a[name].double(), b[name].double(), rtol=0, atol=TOLERANCE):
            return name
    return None


def _states(check: Check, situation: str, got: State, right: State) -> None:
    if (name := _apart(got, right)) is not None:
        check.fail(
            f"{situation}: the losses are right, but at the end {name} is not what a plain loop "
            "gives: is the last step taken?"
        )
