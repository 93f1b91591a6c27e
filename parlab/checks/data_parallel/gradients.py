"""Exercise `all_reduce_gradients`: the gradient of the global batch, on every rank."""

import random
from collections.abc import Callable, Sequence

from mpi4py import MPI
from torch import nn

from parlab.checks.base import Check, fresh_seed, gather
from parlab.checks.data_parallel.common import (
    State,
    add,
    all_equal,
    awkward_model,
    first_difference,
    gradients,
    gradients_of,
    tokens_for,
    unused_or_pickled,
)
from parlab.checks.watchdog import Ended
from parlab.ledger import Ledger

AllReduce = Callable[[nn.Module, float, MPI.Intracomm], None]


def all_reduce_gradients(function: AllReduce) -> None:
    """Check on uneven shards, one of them empty, on 1, 2, … ranks."""
    check = Check("all_reduce_gradients")
    for world_size in range(1, check.world_size + 1):
        seed = fresh_seed()
        for samples in uneven_shards(world_size, seed):
            _on_shards(check, function, samples, seed)
    check.passed("the full gradient on every rank, for uneven and empty shards, each tensor once")


def uneven_shards(world_size: int, seed: int) -> list[list[int]]:
    """Two ways to share samples: another number on each rank; and none on the last of several."""
    samples = random.Random(seed).sample(range(1, 2 * world_size + 2), world_size)
    return [samples] if world_size == 1 else [samples, [*samples[:-1], 0]]


def _on_shards(check: Check, function: AllReduce, samples: list[int], seed: int) -> None:
    world_size = len(samples)
    model = awkward_model(seed, seed)
    local = [gradients(model, *tokens_for(model, n, seed + r)) for r, n in enumerate(samples)]
    with check.communicator(list(range(world_size))) as comm:
        ledger = Ledger()
        share = 0.0
        if comm is not None:
            share = samples[comm.rank] / sum(samples)
            _set_gradients(model, local[comm.rank] if samples[comm.rank] else {})
        check.call(
            function, model, share, comm and ledger.watch(comm),
            comm=comm, situation=f"with {samples} samples on the ranks", explain=_skipped,
        )  # fmt: skip
        everyone = gather(gradients_of(model))[:world_size]
        problem = name_the_mistake(everyone, local, samples)
        if problem:
            check.fail(f"{problem} (samples on the ranks: {samples})")
        if comm is not None:
            problem = _frozen(model) or _traffic(model, ledger, comm)
        check.agree(problem, among=world_size, comm=comm)


def _set_gradients(model: nn.Module, values: State) -> None:
    """What backward() leaves: no gradient for the unused parameter, nor for frozen ones."""
    for name, value in values.items():
        if name != "unused":
            model.get_parameter(name).grad = value.clone()


def name_the_mistake(
    everyone: Sequence[State], local: Sequence[State], samples: Sequence[int]
) -> str | None:
    """What the ranks' results are instead of the weighted mean; None when they are that.

    `everyone[r]` is what rank r has now, `local[r]` its own gradient, of `samples[r]` samples.
    """
    world_size, total = len(samples), sum(samples)
    shares = [n / total for n in samples]
    right = add(local, shares)
    differences = [first_difference(got, right) for got in everyone]
    if not any(differences):
        return None
    plain_sum = add(local, [1.0] * world_size)
    mistakes: list[tuple[Callable[[int], State], str]] = [
        (
            lambda rank: local[rank],
            "every rank has its own gradient, as before: nothing was summed over the ranks, so "
            "the models drift apart",
        ),
        (
            lambda rank: add([local[rank]], [shares[rank]]),
            "each rank's own gradient is weighted with its share, but never summed over the ranks",
        ),
        (
            lambda rank: local[0],
            "every rank holds rank 0's gradient: broadcast where a sum is needed. The other ranks' "
            "samples count for nothing",
        ),
        (
            lambda rank: plain_sum,
            "the gradients are summed without weights: a sum where a mean is needed. With N ranks "
            "the step is N times too long (SGD shows it, Adam hides it)",
        ),
        (
            lambda rank: add([plain_sum], [1 / world_size]),
            "each rank weighs 1/N, whatever it holds: in the last, uneven batch a sample on a rank "
            "with few of them weighs more. Weight with `share`",
        ),
        (
            lambda rank: add([plain_sum], [shares[rank]]),
            "the sum is weighted with each rank's own share: weight before the all-reduce, "
            "afterwards it is too late",
        ),
    ]
    for wrong, text in mistakes:
        if all(all_equal(got, wrong(rank)) for rank, got in enumerate(everyone)):
            return text
    rank = next(rank for rank, difference in enumerate(differences) if difference)
    others = [name for name in right if name != "embed.weight"]
    if others and all(all_equal({n: got[n] for n in others}, right) for got in everyone):
        return (
            f"rank {rank}: {differences[rank]}, and all others are right: is a tied weight "
            "reduced twice?"
        )
    return f"rank {rank}: {differences[rank]}"


def _frozen(model: nn.Module) -> str | None:
    if model.frozen.weight.grad is not None:
        return "frozen.weight has a .grad now: it requires none, and needs no message"
    return None


def _skipped(endings: dict[int, Ended]) -> str | None:
    stuck = [e for e in endings.values() if e.kind == "stuck"]
    if stuck and any(e.kind == "returned" for e in endings.values()):
        return (
            "A rank whose share is empty has no .grad: did it skip the all-reduces in which the "
            "others wait? All ranks must make the same calls: None counts as zeros."
        )
    return None


def _traffic(model: nn.Module, ledger: Ledger, comm: MPI.Intracomm) -> str | None:
    if comm.size == 1:
        return None
    if problem := unused_or_pickled(ledger):
        return problem
    trainable = [p for p in model.parameters() if p.requires_grad]
    once, sent = sum(p.nbytes for p in trainable), ledger.bytes_sent()
    if sent == once + model.embed.weight.nbytes:
        return (
            f"{sent} bytes where {once} are enough: embed.weight serves two layers and is one "
            "parameter, so a tied weight is reduced twice"
        )
    # A parameter that has no gradient on any rank may be left out.
    if sent not in (once, once - model.unused.nbytes) or ledger.count() > len(trainable):
        return (
            f"{ledger.count()} messages of {sent} bytes in all, where {len(trainable)} of {once} "
            "are right: each trainable tensor once"
        )
    return None
