"""Pipeline parallelism with torch.distributed.pipelining: a small GPT on any number of ranks.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/05_pipeline_parallel.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/05_pipeline_parallel.py \\
        --pipeline-parallel 4

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo.
`--pipeline-parallel N` makes a pipeline of N ranks (default: all). If there are several pipelines,
each one trains on its part of the batch. `--schedule` is gpipe, 1f1b, or interleaved, which has two
stages on each rank.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from parlab import models
from parlab.data import text
from parlab.pipeline.stages import layers_of

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


def start_ranks() -> torch.device:
    """Join the process group that torchrun prepared. Return this rank's device."""
    # NCCL needs a GPU for each rank of this node.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # otherwise, the ranks would compete for cores
        dist.init_process_group("gloo")
    return device


def make_mesh(device: torch.device, arguments: argparse.Namespace) -> DeviceMesh:
    """Return a mesh with a row of ranks for each pipeline."""
    world_size = dist.get_world_size()
    ranks = arguments.pipeline_parallel or world_size
    replicas, left = divmod(world_size, ranks)
    if left or arguments.global_batch % (replicas * arguments.micro_batches):
        raise SystemExit(
            f"--pipeline-parallel must divide {world_size}, the number of ranks. The result, the "
            "number of replicas, must divide the batch into parts that are multiples of "
            f"{arguments.micro_batches}, the number of micro-batches"
        )
    return init_device_mesh(device.type, (replicas, ranks), mesh_dim_names=("data", "pipeline"))


def stages_of(layers: list[nn.Module], count: int) -> list[nn.Sequential]:
    """Divide the layers into `count` stages of nearly equal length."""
    borders = [len(layers) * i // count for i in range(count + 1)]
    return [nn.Sequential(*layers[borders[i] : borders[i + 1]]) for i in range(count)]


def token_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over a micro-batch. The schedule divides by the number of micro-batches."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def schedule_of(
    stages: list[PipelineStage], name: str, micro_batches: int
) -> ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B:
    """Return the schedule of this name for this rank's stages."""
    return SCHEDULES[name](
        stages if name == "interleaved" else stages[0],
        n_microbatches=micro_batches,
        loss_fn=token_loss,
    )


def ends_of(rows: torch.Tensor) -> dist.ProcessGroup | None:
    """Return the group of a pipeline's first and last ranks, which both have the tied weight.

    Return None in a pipeline of one rank, and on ranks in the middle. All ranks create all groups.
    """
    own_part = None
    for row in rows.tolist():
        if len(row) > 1:
            group = dist.new_group([row[0], row[-1]])
            own_part = group if dist.get_rank() in (row[0], row[-1]) else own_part
    return own_part


def average(parameters: list[nn.Parameter], mesh: DeviceMesh) -> None:
    """Average the gradients over the replicas, among the ranks that have the same stages."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=mesh.get_group())
        parameter.grad /= mesh.size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pipeline-parallel", type=int, help="ranks in a pipeline")
    arguments = parser.parse_args()

    device = start_ranks()
    mesh = make_mesh(device, arguments)
    replicas, ranks = mesh.shape
    rank, replica = mesh["pipeline"].get_local_rank(), mesh["data"].get_local_rank()
    first, last = rank == 0, rank == ranks - 1

    torch.manual_seed(0)  # every rank creates the same model, and keeps its stages
    model = models.GPT(models.GPTConfig(layers=4))
    count = ranks * (2 if arguments.schedule == "interleaved" else 1)
    layers = layers_of(model)
    if count > len(layers):
        raise SystemExit(f"{len(layers)} layers cannot be divided into {count} stages")
    own = {i: s.to(device) for i, s in enumerate(stages_of(layers, count)) if i % ranks == rank}
    group = mesh["pipeline"].get_group()
    stages = [PipelineStage(module, i, count, device, group=group) for i, module in own.items()]
    schedule = schedule_of(stages, arguments.schedule, arguments.micro_batches)
    parameters = list(nn.ModuleList(own.values()).parameters())
    tied = layers[0].tokens.weight if first else layers[-1].unembed.weight if last else None
    ends = ends_of(mesh.mesh)
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)

    length = model.config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        own_part = batch[replica::replicas].to(device)  # all ranks of a row have the same samples
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        inputs = (own_part[:, :-1].contiguous(),) if first else ()
        outputs = {"target": own_part[:, 1:], "losses": losses} if last else {}
        schedule.step(*inputs, **outputs, return_outputs=False)
        if ends is not None:
            dist.all_reduce(tied.grad, group=ends)  # each end has a part of the gradient
        average(parameters, mesh["data"])
        optimizer.step()
        if last:
            recent += torch.stack(losses).mean().detach() / 10
        if step % 10 == 9:
            dist.all_reduce(recent)
            if dist.get_rank() == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / replicas:.4f}")
            recent.zero_()

    held = sum(parameter.numel() for parameter in parameters)
    whole = models.parameter_count(model)
    if dist.get_rank() == 0:
        print(f"rank 0 holds {held:,} of {whole:,} parameters, in {len(own)} of {count} stages")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
