"""Exercise `flat_step`: a training step on one flat buffer, with one message."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parlab.checks.base import Check, fresh_seed, gather
from parlab.checks.data_parallel.common import (
    TOLERANCE,
    State,
    all_equal,
    awkward_model,
    gradients,
    gradients_of,
    state_of,
    tokens_for,
    unused_or_pickled,
)
from parlab.checks.data_parallel.gradients import name_the_mistake, uneven_shards
from parlab.ledger import Ledger
from parlab.models import Awkward

FlatStep = Callable[..., float]
RATE = 0.5


def flat_step(function: FlatStep) -> None:
    """Check two steps of SGD, on uneven and empty shards, on 1, 2, … ranks."""
    check = Check("flat_step")
    for world_size in range(1, check.world_size + 1):
        seed = fresh_seed()
        for samples in uneven_shards(world_size, seed):
            _two_steps(check, function, samples, seed)
    check.passed("full gradients in the buffer, step after step, with one message each")


def _two_steps(check: Check, function: FlatStep, samples: list[int], seed: int) -> None:
    model = awkward_model(seed, seed)
    flat = _flat(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with check.communicator(list(range(len(samples)))) as comm:
        for step in (1, 2):
            data = [tokens_for(model, n, seed + 10 * step + r) for r, n in enumerate(samples)]
            problem = _one_step(check, function, model, flat, optimizer, data, comm)
            if problem and step == 2:
                problem = (
                    "the first step is right and the second is not: is what the first left in the "
                    f"buffer still there when backward() adds to it? {problem}"
                )
            if problem:
                check.fail(f"{problem} (samples on the ranks: {samples})")
            _follow(model)


def _one_step(
    check: Check,
    function: FlatStep,
    model: Awkward,
    flat: Tensor,
    optimizer: torch.optim.Optimizer,
    data: list[tuple[Tensor, Tensor]],
    comm: MPI.Intracomm | None,
) -> str | None:
    """What is wrong with the gradients or the loss after a step; the rest fails at once."""
    samples = [len(inputs) for inputs, _ in data]
    before, total, world_size = state_of(model), sum(samples), len(samples)
    local = [gradients(model, *share) for share in data]
    right = sum(_loss_sum(model, *share) for share in data) / total
    ledger = Ledger()
    mine = data[comm.rank if comm is not None else 0]
    part = check.call(
        function, model, flat, optimizer, *mine, total, comm and ledger.watch(comm),
        comm=comm, situation=f"with {samples} samples on the ranks",
    )  # fmt: skip
    problem = _form(part) or _views(flat, model) if comm is not None else None
    check.agree(problem, among=world_size, comm=comm)
    everyone = gather(gradients_of(model))[:world_size]
    if problem := name_the_mistake(everyone, local, samples):
        return problem
    if comm is not None:
        problem = _stepped(state_of(model), before, everyone[0]) or _one_message(ledger, comm)
    check.agree(problem, among=world_size, comm=comm)
    returned = sum(gather(part)[:world_size])
    if abs(returned - right) > TOLERANCE:
        return (
            f"the ranks' return values add up to {returned:.6f} where the mean loss over the "
            f"global batch, before the step, is {right:.6f}"
        )
    return None


def _follow(model: Awkward) -> None:
    """Ranks that took no part get rank 0's weights, so that all know what is right next."""
    for name, value in gather(state_of(model))[0].items():
        model.state_dict()[name].copy_(value)


def _loss_sum(model: Awkward, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        return F.cross_entropy(model(inputs), targets, reduction="sum").item()


def _flat(model: Awkward) -> Tensor:
    """The buffer that exercise `flat_gradients` asks for."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.grad = torch.empty_like(parameter)
    flat = torch.zeros_like(parameters_to_vector(trainable))
    vector_to_parameters(flat, (p.grad for p in trainable))
    return flat.detach()


def _form(part: object) -> str | None:
    if part is None:
        return "it returns None: is a `return` missing?"
    return None if isinstance(part, float | int) else "it must return a Python float (`.item()`)"


def _views(flat: Tensor, model: nn.Module) -> str | None:
    first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or not first <= parameter.grad.data_ptr() < last:
            return (
                f"the gradient of {name} is no longer in the buffer: optimizer.zero_grad() sets "
                "gradients to None, and backward() makes new ones elsewhere. Zero the buffer"
            )
    return None


def _stepped(after: State, before: State, gradient: State) -> str | None:
    right = {name: before[name] - RATE * gradient[name] for name in gradient}
    if all_equal(before, after):
        return "the gradients are right, but no weight has changed: is optimizer.step() missing?"
    if not all_equal(right, after):
        return "the weights did not take the step of the summed gradient: all-reduce before step()"
    return None


def _one_message(ledger: Ledger, comm: MPI.Intracomm) -> str | None:
    if comm.size == 1:
        return None
    if ledger.count() > 1:
        return f"{ledger.count()} messages: the whole buffer goes in one all-reduce, and no other"
    return unused_or_pickled(ledger)
