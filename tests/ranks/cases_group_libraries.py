"""torch's libraries on the mpi4py group, compared with the same model trained on one rank."""

import copy

import torch
from torch import nn

from tests.support.on_ranks import Cases, World

cases = Cases()


def model(width: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def inputs(world: World, width: int) -> list[torch.Tensor]:
    return [
        torch.randn(4, width, generator=torch.Generator().manual_seed(r)) for r in range(world.size)
    ]


@cases.add(dtype=[None, torch.bfloat16])
def fsdp2(world: World, dtype: torch.dtype | None) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    reference = model(5)  # 5 rows on 2, 3 or 4 ranks: uneven shards
    sharded = copy.deepcopy(reference)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    mesh = DeviceMesh.from_group(world.group, "cpu")
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    data = inputs(world, 5)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, sharded)]
    for _ in range(3):
        sharded(data[world.rank]).square().mean().backward()
        for x in data:
            (reference(x).square().mean() / world.size).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    loose = {"rtol": 0.1, "atol": 0.02} if dtype else {}
    for p, q in zip(sharded.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.full_tensor(), q, **loose)


@cases.add()
def tensor_parallel(world: World) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    width = 2 * world.size
    reference = model(width)
    mesh = DeviceMesh.from_group(world.group, "cpu")
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallel = parallelize_module(copy.deepcopy(reference), mesh, plan)
    x = inputs(world, width)[0]
    torch.testing.assert_close(parallel(x), reference(x))
    parallel(x).square().sum().backward()
    reference(x).square().sum().backward()
    for p, q in zip(parallel.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad)


@cases.add(schedule=["ScheduleGPipe", "Schedule1F1B"])
def pipelining(world: World, schedule: str) -> None:
    from torch.distributed import pipelining as library

    stages = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(world.size)]
    torch.manual_seed(1)
    for parameter in nn.ModuleList(stages).parameters():
        nn.init.normal_(parameter)
    reference = nn.Sequential(*copy.deepcopy(stages))
    own_stage = stages[world.rank]
    stage = library.PipelineStage(
        own_stage, world.rank, world.size, torch.device("cpu"), group=world.group
    )
    last = world.rank == world.size - 1
    run = getattr(library, schedule)(stage, 4, loss_fn=nn.functional.mse_loss)
    x, target = torch.randn(8, 4), torch.randn(8, 4)
    run.step(*([x] if world.rank == 0 else []), **({"target": target} if last else {}))
    nn.functional.mse_loss(reference(x), target).backward()
    for p, q in zip(own_stage.parameters(), reference[world.rank].parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@cases.add()
def functional_collectives(world: World) -> None:
    from torch.distributed import _functional_collectives as functional

    x = torch.full((3,), float(world.rank + 1), requires_grad=True)
    total = functional.all_reduce(x.detach(), "sum", world.group)
    assert total[0] == world.size * (world.size + 1) / 2
    gathered = functional.all_gather_single(x.detach(), 0, world.group)
    assert gathered.view(world.size, 3)[:, 0].tolist() == [r + 1.0 for r in range(world.size)]
    part = functional.reduce_scatter_single(torch.ones(2 * world.size), "avg", 0, world.group)
    assert part.tolist() == [1.0, 1.0]


@cases.add()
def sharded_checkpoint(world: World) -> None:
    import tempfile

    from torch.distributed import checkpoint

    folder = world.comm.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    state = {"weight": torch.full((3,), 5.0), "step": 7}
    checkpoint.save(state, checkpoint_id=folder, process_group=world.group)
    loaded = {"weight": torch.zeros(3), "step": 0}
    checkpoint.load(loaded, checkpoint_id=folder, process_group=world.group)
    assert torch.equal(loaded["weight"], state["weight"]) and loaded["step"] == 7
