"""Messages on the group of a check, in the orders that pipelines need."""

import torch
import torch.distributed as dist

from parlab.checks.base.late_group import RecordingGroup
from parlab.ledger import Ledger
from tests.support.on_ranks import Cases, World

cases = Cases()


def late(world: World) -> RecordingGroup:
    return RecordingGroup(world.comm.Dup(), list(range(world.size)), Ledger())


@cases.add()
def waiting_for_one_message_leaves_others_under_way(world: World) -> None:
    """A send that no rank has received yet does not delay messages that arrive in the meantime."""
    if world.size < 2:
        return
    group = late(world)
    if world.rank == 0:
        for_later = dist.isend(torch.ones(3), group=group, group_dst=1, tag=1)
        answer = torch.zeros(1)
        dist.recv(answer, group=group, group_src=1, tag=2)
        assert answer.item() == 7 and not for_later.is_completed()
        dist.isend(torch.ones(1), group=group, group_dst=1, tag=3).wait()
        for_later.wait()
    elif world.rank == 1:
        dist.isend(torch.tensor([7.0]), group=group, group_dst=0, tag=2).wait()
        announced, late_one = torch.zeros(1), torch.zeros(3)
        dist.recv(announced, group=group, group_src=0, tag=3)
        dist.recv(late_one, group=group, group_src=0, tag=1)
        assert late_one.tolist() == [1, 1, 1]
    group.close()


@cases.add()
def a_message_lands_when_it_is_waited_for(world: World) -> None:
    if world.size < 2:
        return
    group = late(world)
    if world.rank == 0:
        dist.isend(torch.ones(2), group=group, group_dst=1).wait()
    elif world.rank == 1:
        room = torch.zeros(2)
        coming = dist.irecv(room, group=group, group_src=0)
        assert room.tolist() == [0, 0]
        coming.wait()
        assert room.tolist() == [1, 1]
    group.close()


@cases.add()
def collectives_stay_in_their_order(world: World) -> None:
    group = late(world)
    first, second = torch.ones(1), torch.full((1,), 10.0)
    one = dist.all_reduce(first, group=group, async_op=True)
    two = dist.all_reduce(second, group=group, async_op=True)
    two.wait()
    assert first.item() == world.size and second.item() == 10 * world.size
    one.wait()
    group.close()
