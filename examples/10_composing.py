"""Data, tensor, and pipeline parallelism on one DeviceMesh: a small GPT on dp × pp × tp ranks.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/10_composing.py --tp 2
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/10_composing.py \\
        --dp 2 --pp 2 --tp 2

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo. `--tp N` splits each
layer over N neighboring ranks, `--pp N` makes N stages, and `--dp N` shards the weights of each
part over N replicas, which read different samples (default: all other ranks).
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from parlab import models
from parlab.data import text
from parlab.pipeline.stages import layers_of

PLAN = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(),
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


def make_mesh(
    device: torch.device, config: models.GPTConfig, arguments: argparse.Namespace
) -> DeviceMesh:
    """Return the mesh of replicas, stages, and ranks that share a layer."""
    pp, tp, world_size = arguments.pp, arguments.tp, dist.get_world_size()
    dp = arguments.dp or max(1, world_size // (pp * tp))
    left = arguments.global_batch % (dp * arguments.micro_batch)
    if dp * pp * tp != world_size or left or config.heads % tp or config.layers % pp:
        raise SystemExit(
            f"--dp × --pp × --tp must be {world_size}, the number of ranks; --tp must divide "
            f"{config.heads} heads, --pp must divide {config.layers} layers, and --dp × "
            "--micro-batch must divide --global-batch"
        )
    # Neighbors share layers, because torchrun numbers the ranks of a node consecutively.
    mesh = init_device_mesh(device.type, (dp, pp, tp), mesh_dim_names=("dp", "pp", "tp"))
    mesh["dp", "tp"]._flatten("dp_tp")  # so that a norm needs one all-reduce, not two
    return mesh


def by_rank(tensor: Tensor, sections: list[int], ranks: int) -> Tensor:
    """Return the rows of a fused Q, K, V in rank order, because ColwiseParallel splits it once."""
    parts = [section.chunk(ranks) for section in tensor.split(sections)]
    return torch.cat([part[r] for r in range(ranks) for part in parts])


def parallel_stage(layers: list[nn.Module], mesh: DeviceMesh) -> nn.Sequential:
    """Return this rank's stage, with its blocks split over "tp" and all weights over "dp"."""
    place, stages, tp = mesh["pp"].get_local_rank(), mesh["pp"].size(), mesh["tp"].size()
    first, *blocks, last = layers
    own = blocks[len(blocks) * place // stages : len(blocks) * (place + 1) // stages]
    for block in own:
        attention = block.attention
        for parameter in attention.qkv.parameters():
            parameter.data = by_rank(parameter.data, attention.sections, tp)
        parallelize_module(block, mesh["tp"], PLAN)
        attention.heads //= tp
        attention.key_value_heads //= tp
    stage = nn.Sequential(*[first] * (place == 0), *own, *[last] * (place == stages - 1))
    for module in (*own, stage):
        # The micro-batches of a step use the same weights, so gather them once.
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    return stage


def example(samples: int, config: models.GPTConfig, width: int, device: torch.device) -> Tensor:
    """Return an empty micro-batch of activations or scores, or of tokens if `width` is 0.

    Activations require a gradient. Otherwise, the stages would not send it back.
    """
    if not width:
        return torch.empty(samples, config.sequence_length, dtype=torch.long, device=device)
    shape = samples, config.sequence_length, width
    return torch.empty(shape, device=device, requires_grad=True)


def schedule_of(
    module: nn.Module,
    mesh: DeviceMesh,
    config: models.GPTConfig,
    samples: int,
    micro_batches: int,
) -> Schedule1F1B:
    """Return the schedule of this rank's stage, for micro-batches of this number of samples."""
    place, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()
    device, hidden = next(module.parameters()).device, config.hidden_size
    widths = hidden if place else 0, hidden if place < stages - 1 else config.vocab_size
    inputs, outputs = (example(samples, config, width, device) for width in widths)
    stage = PipelineStage(
        module,
        place,
        stages,
        device,
        input_args=inputs,
        output_args=outputs,
        group=mesh["pp"].get_group(),
    )
    return Schedule1F1B(stage, n_microbatches=micro_batches, loss_fn=token_loss)


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over a micro-batch. The schedule divides by the number of micro-batches."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def ends_of(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """Return the group of the first and the last stage of this rank's pipeline, or None.

    All ranks create all groups.
    """
    own = None
    for row in mesh.mesh.movedim(1, -1).reshape(-1, mesh["pp"].size()).tolist():
        if len(row) > 1:
            group = dist.new_group([row[0], row[-1]])
            own = group if dist.get_rank() in (row[0], row[-1]) else own
    return own


def clip(parameters: list[nn.Parameter], twice: nn.Parameter | None, mesh: DeviceMesh) -> None:
    """Clip the gradient of the whole model to a norm of 1. Another stage counts `twice`."""
    meshes: dict[DeviceMesh, list[Tensor]] = {}
    for p in parameters:
        if p is not twice:
            meshes.setdefault(p.device_mesh, []).append(p.grad)
    norms = [nn.utils.get_total_norm(grads).full_tensor() for grads in meshes.values()]
    squares = torch.stack(norms).square().sum()
    dist.all_reduce(squares, group=mesh["pp"].get_group())
    for p in parameters:
        p.grad.to_local().mul_((1 / (squares.sqrt() + 1e-6)).clamp(max=1.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dp", type=int, help="replicas")
    parser.add_argument("--pp", type=int, default=1, help="stages")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share a layer")
    arguments = parser.parse_args()

    device, config = start_ranks(), models.GPTConfig(layers=4, heads=8)
    mesh = make_mesh(device, config, arguments)
    dp, pp, tp = mesh.shape
    place, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    first, last = place == 0, place == pp - 1

    torch.manual_seed(0)  # every rank creates the same model, and keeps its part
    layers = layers_of(models.GPT(config).to(device))
    module = parallel_stage(layers, mesh)
    parameters = list(module.parameters())
    tied = layers[0].tokens.weight if first else layers[-1].unembed.weight if last else None
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, foreach=False)  # of several meshes
    ends = ends_of(mesh)
    micro_batches = arguments.global_batch // (dp * arguments.micro_batch)
    schedule = schedule_of(module, mesh, config, arguments.micro_batch, micro_batches)

    length = config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        own = batch.chunk(dp)[replica].to(device)  # all ranks of a replica have the same samples
        losses: list[Tensor] = []
        optimizer.zero_grad()
        tokens = (own[:, :-1].contiguous(),) if first else ()
        targets = {"target": own[:, 1:], "losses": losses} if last else {}
        schedule.step(*tokens, **targets, return_outputs=False)
        if ends is not None:
            dist.all_reduce(tied.grad.to_local(), group=ends)  # each end has a part of the gradient
        clip(parameters, tied if last and not first else None, mesh)
        optimizer.step()
        if last:
            recent += torch.stack(losses).mean().detach() / 10
        if step % 10 == 9:
            dist.all_reduce(recent)
            if dist.get_rank() == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / (dp * tp):.4f}")
            recent.zero_()

    held = sum(p.to_local().numel() for p in parameters)
    whole = models.parameter_count(models.GPT(config))
    if dist.get_rank() == 0:
        print(f"{dp} dp × {pp} pp × {tp} tp: rank 0 holds {held:,} of {whole:,} parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
