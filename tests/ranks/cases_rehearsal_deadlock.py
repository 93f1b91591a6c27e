"""A deadlock on the stand-in for NCCL, which reports it after 20 seconds and ends the group."""

import torch
import torch.distributed as dist

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


@cases.add()
def two_ranks_that_send_first_are_in_a_deadlock(world: World) -> None:
    x, room = torch.ones(2, device="cuda"), torch.empty(2, device="cuda")
    other = 1 - world.rank
    dist.isend(x, other)
    with expecting(RuntimeError, "deadlock (rehearsal of NCCL)"):
        dist.irecv(room, other)
