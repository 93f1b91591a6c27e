"""parlab on emulated GPUs (`tests/rehearsal`). Each rank has its own GPU, or ranks share one."""

import time

import numpy as np
import torch
import torch.distributed as dist

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


def shared(world: World) -> bool:
    return torch.cuda.device_count() < world.size


@cases.add()
def devices_and_groups(world: World) -> None:
    from parlab.rank import device, devices

    assert device.type == "cuda" and torch.cuda.current_device() == device.index
    assert devices.choose().one_gpu_each == (not shared(world))
    assert dist.get_backend(world.group) == "mpi4py"
    assert dist.get_backend() == ("mpi4py" if shared(world) else "nccl")
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32


@cases.add()
def collectives_through_the_host(world: World) -> None:
    total = sum(range(1, world.size + 1))
    x = torch.full((2, 3), world.rank + 1.0, device="cuda").t()  # not contiguous
    dist.all_reduce(x, group=world.group)
    assert x.is_cuda and x.flatten().tolist() == [total] * 6
    own = torch.full((2,), float(world.rank), device="cuda")
    rooms = [torch.empty(2, device="cuda") for _ in range(world.size)]
    dist.all_gather(rooms, own, group=world.group)
    assert [room[0].item() for room in rooms] == list(range(world.size))
    part = torch.empty(2, device="cuda")
    dist.reduce_scatter(part, rooms, group=world.group)
    assert part.tolist() == [world.rank * world.size] * 2
    dist.scatter(part, rooms if world.rank == 0 else None, group_src=0, group=world.group)
    assert part.tolist() == [world.rank] * 2
    work = dist.all_reduce(own, group=world.group, async_op=True)
    assert work.result()[0] is own and work.get_future().value()[0] is own


@cases.add()
def messages_with_tags_in_any_order(world: World) -> None:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    sent = [torch.full((3,), 10.0 * world.rank + tag, device="cuda") for tag in (0, 1)]
    works = [dist.isend(sent[tag], right, tag=tag, group=world.group) for tag in (0, 1)]
    rooms = [torch.empty(3, device="cuda") for _ in (0, 1)]
    for tag in (1, 0):
        receive = dist.irecv(rooms[tag], left, tag=tag, group=world.group)
        assert receive.result()[0] is rooms[tag]
        assert rooms[tag].tolist() == [10.0 * left + tag] * 3
    for work in works:
        work.wait()
    column = torch.zeros(2, 4, device="cuda")[:, 1]
    work = dist.isend(sent[0][:2], right, group=world.group)
    dist.recv(column, left, group=world.group)
    assert column.tolist() == [10.0 * left] * 2
    work.wait()


@cases.add()
def comm_refuses_tensors_of_a_gpu(world: World) -> None:
    x = torch.ones(3, device="cuda")
    for call in (
        lambda: world.comm.Allreduce(x, np.empty(3, np.float32)),
        lambda: world.comm.Bcast(x),
        lambda: world.comm.Isend(x, 0),
    ):
        with expecting(TypeError, "this MPI reads only the host's memory"):
            call()


@cases.add()
def a_check_gets_tensors_of_a_gpu(world: World) -> None:
    from parlab.checks.base.late_group import RecordingGroup
    from parlab.ledger import Ledger

    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    group = RecordingGroup(world.comm.Dup(), list(range(world.size)), Ledger())
    x, room = (torch.full((2,), float(world.rank), device="cuda") for _ in range(2))
    work = dist.isend(x, group=group, group_dst=right)
    receive = dist.irecv(room, group=group, group_src=left)
    assert room.tolist() == [world.rank] * 2
    receive.wait()
    work.wait()
    assert room.tolist() == [left] * 2
    dist.all_reduce(x, group=group)
    assert x.tolist() == [sum(range(world.size))] * 2
    work = dist.isend(x, group=group, group_dst=right)
    receive = dist.irecv(room, group=group, group_src=left)
    x.zero_()
    receive.wait()
    with expecting(RuntimeError, "changed"):
        work.wait()
    group.close()


@cases.add()
def spans_are_of_the_gpu(world: World) -> None:
    from parlab.timeline import Timeline

    timeline = Timeline(world.comm)
    x = torch.ones(200, 200, device="cuda")
    with timeline.span("product"):
        x @ x
    timeline.add("host", "compute", now := time.perf_counter(), now + 1.0)
    product, host = (s for s in timeline.gather() if s.rank == world.rank)
    assert (product.name, host.name) == ("product", "host")
    assert product.seconds > 0 and product.end <= host.start + 1e-3
    assert abs(host.seconds - 1.0) < 1e-6


@cases.add()
def peaks_inside_of_peaks(world: World) -> None:
    from parlab.memory import Peak

    with Peak("cuda") as outer:
        torch.empty(1 << 20, device="cuda")
        with Peak("cuda") as inner:
            kept = torch.empty(1 << 18, device="cuda")
        del kept
    assert (outer.bytes, inner.bytes) == (4 << 20, 1 << 20)


@cases.add()
def groups_after_a_new_start(world: World) -> None:
    """After a deadlock, torch.distributed is restarted, and the notebook's `group` works again."""
    import parlab.rank
    from parlab.rank import torch_groups

    before = world.group
    torch_groups._state["closed"] = True
    assert torch_groups.renew()
    assert parlab.rank.group is before and torch_groups.start() is before
    for group in (before, dist.group.WORLD):
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x, group=group)
        assert x.tolist() == [world.size] * 2
