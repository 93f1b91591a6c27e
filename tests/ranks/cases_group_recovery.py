"""The mpi4py group frees blocked ranks, and works again after recovery."""

import copy
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


@cases.add(call=["all_reduce", "recv", "wait", "barrier", "broadcast"])
def revoking_frees_a_blocked_rank(world: World, call: str) -> None:
    """Rank 0 does not call it, and the others wait until a thread on each of them revokes."""
    from mpi4py import MPI

    from parlab.runtime.torch_mpi.group import MPIGroup

    group = MPIGroup(world.comm.Dup())
    world.comm.Barrier()  # Open MPI crashes if a communicator is revoked while it is made
    if world.rank == 0:
        return
    blocked = {
        "all_reduce": lambda: group.allreduce([torch.ones(4)]),
        "recv": lambda: group.recv([torch.ones(4)], 0).wait(),
        "wait": lambda: group.recv_anysource([torch.ones(4)]).wait(),
        "barrier": lambda: group.barrier(),
        "broadcast": lambda: group.broadcast([torch.ones(4)], dist.BroadcastOptions()),
    }
    timer = threading.Timer(0.3, group.comm.Revoke)
    timer.start()
    start = time.monotonic()
    with expecting(MPI.Exception, "REVOKED"):
        blocked[call]()
    assert time.monotonic() - start < 30
    timer.join()


@cases.add()
def the_same_object_after_a_new_start(world: World) -> None:
    """As in recovery, torch.distributed is restarted, and `group` still works."""
    from parlab.rank import torch_groups
    from parlab.runtime.torch_mpi.group import MPIGroup

    before, model = world.group, nn.Linear(3, 2)
    x = torch.ones(2)
    torch_groups._state["closed"] = True
    assert torch_groups.renew()
    assert dist.get_world_size(before) == world.size
    dist.all_reduce(x, group=before)
    assert x[0] == world.size
    ddp = DistributedDataParallel(copy.deepcopy(model), process_group=before)
    ddp(torch.ones(1, 3)).sum().backward()
    sub = dist.new_group([0, 1], backend="mpi4py")
    if world.rank < 2:
        dist.all_reduce(x, group=sub)
        assert x[0] == 2 * world.size
    everyone = dist.new_group(backend="mpi4py")
    assert everyone is not before and isinstance(everyone, MPIGroup)
    dist.all_reduce(x.fill_(1), group=everyone)
    assert x[0] == world.size


@cases.add()
def a_renewed_handle_is_used(world: World) -> None:
    """Recovery puts the handle of a new communicator into the same mpi4py object."""
    from parlab.rank import world as ranks
    from parlab.runtime.torch_mpi.group import MPIGroup

    group = MPIGroup(ranks.new_communicator())
    world.comm.Barrier()  # Open MPI crashes if a communicator is revoked while it is made
    group.comm.Revoke()
    while not group.comm.Is_revoked():
        time.sleep(0.001)
    ranks.renew()
    x = torch.ones(2)
    group.allreduce([x])
    assert x[0] == world.size
