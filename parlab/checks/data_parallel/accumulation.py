"""Exercise `accumulate`: many backward passes, one synchronisation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn

from parlab.checks.base import Check, fresh_seed, gather
from parlab.checks.data_parallel.common import (
    TOLERANCE,
    add,
    all_equal,
    awkward_model,
    first_difference,
    gradients,
    gradients_of,
    tokens_for,
)
from parlab.checks.watchdog import Ended
from parlab.models import Awkward
from parlab.rank.mpi_group import MPIGroup

MicroBatches = list[tuple[Tensor, Tensor]]
Accumulate = Callable[[nn.Module, MicroBatches, int], float]


class Replica(nn.Module):
    """Data parallelism at its plainest, that notes how it was used: no buckets, no overlap.

    A backward pass outside `no_sync` is one synchronisation, announced by the pass itself and
    carried out in `finish()`.
    """

    def __init__(self, model: Awkward, comm: MPI.Intracomm) -> None:
        super().__init__()
        self.model, self.group = model, MPIGroup(comm)
        self.synchronise = True
        self.passes = self.synchronised = self.finished = 0
        model.unembed.bias.register_post_accumulate_grad_hook(self._backward_seen)

    def _backward_seen(self, _: Tensor) -> None:
        self.passes += 1
        self.synchronised += self.synchronise

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.synchronise = False
        try:
            yield
        finally:
            self.synchronise = True

    def finish(self) -> None:
        self.finished += 1
        for name, gradient in gradients_of(self.model).items():
            dist.all_reduce(gradient, group=self.group)
            self.model.get_parameter(name).grad = gradient


def accumulate(function: Accumulate) -> None:
    """Check uneven micro-batches, and a rank without any, on 1, 2, … ranks."""
    check = Check("accumulate")
    for world_size in range(1, check.world_size + 1):
        # Of three and three and two samples, fewer on later ranks, none on the fourth.
        sizes = [[3, 3, 2][: max(3 - rank, 0)] for rank in range(world_size)]
        _on_micro_batches(check, function, sizes, fresh_seed())
    check.passed("one synchronisation, in the last backward pass; every sample weighs the same")


def _on_micro_batches(
    check: Check, function: Accumulate, sizes: list[list[int]], seed: int
) -> None:
    world_size, total = len(sizes), sum(sum(rank) for rank in sizes)
    model = awkward_model(seed, seed)
    data = [
        [tokens_for(model, n, seed + 10 * r + i) for i, n in enumerate(rank)]
        for r, rank in enumerate(sizes)
    ]
    situation = f"with micro-batches of {sizes}"
    with check.communicator(list(range(world_size))) as comm:
        replica = Replica(model, comm) if comm is not None else None
        mine = data[comm.rank] if comm is not None else []
        loss = check.call(
            function, replica, mine, total, comm=comm, situation=situation, explain=_left
        )
        problem = None
        if replica is not None:
            problem = _uses(replica, len(mine)) or _values(replica, data, total) or _form(loss)
        check.agree(problem and f"{problem} ({situation})", among=world_size, comm=comm)
    returned = sum(gather(loss)[:world_size])
    right = sum(_loss(model, *batch) * len(batch[0]) / total for rank in data for batch in rank)
    if abs(returned - right) > TOLERANCE:
        check.fail(
            f"the ranks' return values add up to {returned:.6f} where the mean loss over the "
            f"global batch is {right:.6f} ({situation})"
        )


def _left(endings: dict[int, Ended]) -> str | None:
    if {e.kind for e in endings.values()} == {"stuck", "returned"}:
        return "A rank without micro-batches must finish() too: the others wait for it."
    return None


def _loss(model: Awkward, inputs: Tensor, targets: Tensor) -> float:
    return nn.functional.cross_entropy(model(inputs), targets).item()


def _form(loss: object) -> str | None:
    if loss is None:
        return "it returns None: is a `return` missing?"
    return None if isinstance(loss, float | int) else "it must return a Python float (`.item()`)"


def _uses(replica: Replica, micro_batches: int) -> str | None:
    if replica.passes != micro_batches:
        return f"{replica.passes} backward passes for {micro_batches} micro-batches"
    if not replica.finished:
        return (
            "finish() was never called, so this rank's gradients are not summed over the ranks"
            if micro_batches
            else "a rank without micro-batches did not finish(): the others wait for it"
        )
    if replica.finished > 1:
        return f"finish() was called {replica.finished} times: one synchronisation is enough"
    if replica.synchronised > 1:
        return (
            f"{replica.synchronised} of {micro_batches} backward passes synchronise: that sends "
            "the gradients once for each micro-batch. All but the last run within no_sync()"
        )
    if micro_batches and not replica.synchronised:
        return (
            "the last backward pass runs within no_sync() too, so that nothing is sent before "
            "finish() and nothing overlaps"
        )
    return None


def _values(replica: Replica, data: list[MicroBatches], total: int) -> str | None:
    batches = [(rank, batch) for rank, ranks in enumerate(data) for batch in ranks]
    found = [gradients(replica.model, *batch) for _, batch in batches]
    got = gradients_of(replica.model)
    difference = first_difference(got, add(found, [len(b[0]) / total for _, b in batches]))
    if difference is None:
        return None
    lengths = [sum(len(inputs) for inputs, _ in rank) for rank in data]
    mistakes = [
        (
            [1.0] * len(batches),
            "the micro-batches' gradients are summed without weights: the step is as many times "
            "too long as there are micro-batches",
        ),
        (
            [1 / len(data[rank]) * lengths[rank] / total for rank, _ in batches],
            "each micro-batch of a rank weighs the same: in the last, smaller one a sample weighs "
            "more. Weight with len(inputs) / total",
        ),
        (
            [1 / len(data[rank]) for rank, _ in batches],
            "each micro-batch weighs 1/k, and the ranks are summed without weights: weight with "
            "len(inputs) / total",
        ),
        (
            [1 / len(data[rank]) / len(data) for rank, _ in batches],
            "each micro-batch of a rank, and each rank, weighs the same, whatever its size: "
            "weight with len(inputs) / total",
        ),
        (
            [len(b[0]) / lengths[rank] for rank, b in batches],
            "each rank's weights add up to 1: divide by `total`, the size of the global batch",
        ),
    ]
    for weights, text in mistakes:
        if all_equal(got, add(found, weights)):
            return text
    return difference
