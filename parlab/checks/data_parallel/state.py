"""Exercise `broadcast_state`: parameters and buffers of rank 0, in place, each once."""

from collections.abc import Callable

import torch
from mpi4py import MPI
from torch import nn

from parlab.checks.base import Check, fresh_seed, gather
from parlab.checks.data_parallel.common import (
    State,
    awkward_model,
    equal,
    on,
    state_of,
    unused_or_pickled,
)
from parlab.ledger import Ledger


def broadcast_state(function: Callable[[nn.Module, MPI.Intracomm], None]) -> None:
    """Check on models that start from another seed on each rank, on 1, 2, … ranks."""
    check = Check("broadcast_state")
    for world_size in range(1, check.world_size + 1):
        _on_ranks(check, function, world_size, fresh_seed())
    check.passed("parameters and buffers of rank 0 on every rank, in place, each sent once")


def _on_ranks(
    check: Check,
    function: Callable[[nn.Module, MPI.Intracomm], None],
    world_size: int,
    seed: int,
) -> None:
    model = awkward_model(seed, seed + check.rank)
    places = _places(model)
    starts = gather(state_of(model))[:world_size]
    with check.communicator(list(range(world_size))) as comm:
        ledger = Ledger()
        check.call(function, model, comm and ledger.watch(comm), comm=comm)
        # One after the other over all ranks: what one rank sees may follow from another's problem.
        for judge in (
            lambda comm: _in_place(model, places),
            lambda comm: _values(state_of(model), starts, comm.rank, ledger),
            lambda comm: _traffic(model, ledger, comm),
        ):
            problem = judge(comm) if comm is not None else None
            situation = f"{problem} ({on(world_size)})"
            check.agree(problem and situation, among=world_size, comm=comm)


def _places(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Which object and which memory each parameter is."""
    return {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}


def _values(got: State, starts: list[State], rank: int, ledger: Ledger) -> str | None:
    wrong = [name for name in got if not equal(got[name], starts[0][name])]
    if not wrong:
        return None
    name = wrong[0]
    mean = sum(start[name].double() for start in starts) / len(starts)
    if rank == 0:
        if equal(got[name], mean):
            return f"{name} is the mean of all ranks' values: a mean of random weights is smaller"
        return f"{name} changed on rank 0, which is the one to copy from: is root=0?"
    if all(equal(got[name], starts[rank][name]) for name in got):
        if not ledger.bytes_sent() + ledger.bytes_received():
            return (
                f"{name} and all else is as before, and this rank took part in no broadcast: every "
                "rank makes the call, those that receive as well"
            )
        return (
            f"{name} and all else is as before: did the broadcast write into a copy? .clone() and "
            "state_dict() copies are not the model; .detach() is the same memory"
        )
    kept = [name for name in wrong if equal(got[name], starts[rank][name])]
    if set(wrong) == set(kept) == {"scale", "seen"}:
        return (
            "parameters are broadcast but buffers (scale, seen) are not: the ranks compute "
            "different outputs from the same weights"
        )
    if kept == ["frozen.weight"]:
        return (
            "frozen.weight is still this rank's own: it is never trained, so nothing would ever "
            "make it the same. Broadcast it whether it requires a gradient or not"
        )
    if equal(got[name], starts[-1][name]):
        return f"{name} is rank {len(starts) - 1}'s, not rank 0's: look at `root`"
    index = tuple(int(i) for i in torch.argwhere(got[name] != starts[0][name])[0])
    return f"{name} differs from rank 0's at {index}"


def _in_place(model: nn.Module, places: dict[str, tuple[int, int]]) -> str | None:
    for name, place in places.items():
        parameter = model.get_parameter(name)
        if (id(parameter), parameter.data_ptr()) != place:
            return (
                f"{name} was replaced by a new tensor, and an optimizer made before has the old "
                "one: overwrite the values in place"
            )
    return None


def _traffic(model: nn.Module, ledger: Ledger, comm: MPI.Intracomm) -> str | None:
    if comm.size == 1:
        return None
    if problem := unused_or_pickled(ledger):
        return problem
    once = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    moved = ledger.bytes_sent() + ledger.bytes_received()
    if moved == once + model.embed.weight.nbytes:
        return (
            f"{moved} bytes where {once} are enough: a tied weight is sent twice. state_dict() "
            "lists it under both of its names, parameters() once"
        )
    return None if moved == once else f"{moved} bytes are moved where {once} are right"
