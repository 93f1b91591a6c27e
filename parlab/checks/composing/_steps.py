"""Shared parts of the checks of a training step: groups of a mesh, a stage, and batches."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab import training
from parlab.checks.base.check import Check
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.subgroups import subgroups
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import Mesh, peers, places
from parlab.costs.collectives import BUS_FACTORS, ring_bytes
from parlab.ledger.calls import SENDS
from parlab.models import GPT, GPTConfig
from parlab.parallel_gpt import ShardedAdam, Stage, serial_gpt

SECONDS = 10.0  # steps need milliseconds, but on a busy machine, the ranks may meet late
TOLERANCE = 1e-5  # float32, in which the model computes
DIMS = ("dp", "pp", "tp")
SIZES = {  # sizes of the dimensions, by the number of ranks
    2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
    3: [(3, 1, 1), (1, 3, 1)],
    4: [(2, 1, 2), (2, 2, 1), (1, 2, 2), (4, 1, 1)],
    8: [(2, 2, 2)],
}

Groups = dict[str, dist.ProcessGroup]


def trials(check: Check) -> Iterator[Trial]:
    """Yield trials on all ranks, numbered in reverse, and on 4 to 1 of them."""
    everyone = list(range(check.world_size))
    orders = [everyone[::-1]]
    orders += [check.draw.sample(everyone, n) for n in (4, 3, 2, 1) if n < len(everyone)]
    for ranks in orders:
        with check.trial(ranks) as trial:
            yield trial


@dataclass
class Setup:
    """The objects of a rank in a mesh. A rank that takes no part has only the mesh."""

    mesh: Mesh
    groups: dict[str, RecordingGroup]
    stage: Stage | None = None
    adam: ShardedAdam | None = None
    serial: GPT | None = None  # the model that the stage is a part of
    replica: int = 0


def in_each_mesh(check: Check, case: Callable[[Trial, Setup], None], lr: float) -> None:
    """Run `case` on each trial, in each mesh of its ranks, with a stage and ZeRO-1 for it."""
    for trial in trials(check):
        for _, mesh in trial.cases(meshes(trial.size)):
            seed = trial.draw.getrandbits(31)
            with groups_of(trial, mesh) as groups:
                own = Setup(mesh, groups)
                if trial.takes_part:
                    own.stage, own.serial = stage_of(mesh, trial.rank, groups, seed)
                    own.adam = ShardedAdam(own.stage, groups["dp"], copies_for(mesh), lr)
                    own.replica = places(mesh)[trial.rank]["dp"]
                case(trial, own)


def group_ranks(rank: int, mesh: Mesh) -> dict[str, list[int]]:
    """Return the ranks of each group that `rank` belongs to, in order, by the group's name."""
    found = {dim: peers(mesh, [dim])[rank] for dim in mesh} | {"all": peers(mesh, mesh)[rank]}
    pipeline = found["pp"]
    if rank in (pipeline[0], pipeline[-1]):
        found["embedding"] = sorted({pipeline[0], pipeline[-1]})
    return found


def groups_over(mesh: Mesh) -> Groups:
    """Return torch groups over the lab's ranks, for a hidden check. Collective."""
    own = group_ranks(dist.get_rank(), mesh)
    return {
        name: dist.new_group(ranks, backend="mpi4py", use_local_synchronization=True)
        for name, ranks in own.items()
    }


@contextmanager
def groups_of(trial: Trial, mesh: Mesh) -> Iterator[dict[str, RecordingGroup]]:
    """Provide this rank's groups on a trial, by their names."""
    own = group_ranks(trial.rank, mesh) if trial.takes_part else {}
    with subgroups(trial, {name: own.get(name, []) for name in (*mesh, "embedding")}) as groups:
        yield {"all": trial.group} | groups if trial.takes_part else {}


def config_for(mesh: Mesh) -> GPTConfig:
    """Return a small GPT whose layers and heads divide into the mesh's stages and parts.

    There are eight features per part, because a layer norm divides by the standard deviation of a
    sample's features. For four features, it is almost zero for some seeds, and rounding errors
    exceed TOLERANCE.
    """
    return GPTConfig(
        vocab_size=11,
        sequence_length=5,
        hidden_size=8 * mesh["tp"],
        layers=2 * mesh["pp"],
        heads=2 * mesh["tp"],
        key_value_heads=mesh["tp"],
    )


def stage_of(mesh: Mesh, rank: int, groups: Groups, seed: int) -> tuple[Stage, GPT]:
    """Return this rank's stage and the serial model. Their scores are not close to zero."""
    config = config_for(mesh)
    stage = Stage(config, seed, groups["tp"], places(mesh)[rank]["pp"], mesh["pp"])
    serial = serial_gpt(config, seed)
    for model in (stage, serial):
        for name, parameter in model.named_parameters():
            if name.startswith(("tokens", "embedding", "positions")):
                parameter.data *= 25
    return stage, serial


def copies_for(mesh: Mesh) -> dict[str, int]:
    """Return how many ranks have the same shard of a gradient, by the kind of its parameter."""
    tp, ends = mesh["tp"], 2 if mesh["pp"] > 1 else 1
    return {"norm": tp, "column": 1, "embedding": tp * ends}


def ring_bytes_in(group: RecordingGroup) -> float:
    """Return how many bytes this rank has sent in a group since its events were taken."""
    started = [event for event in group.events if event.kind == "start"]
    messages = sum(event.bytes for event in started if event.op in SENDS)
    collectives = (event for event in started if event.op in BUS_FACTORS)
    return messages + sum(ring_bytes(e.op, e.bytes, group.size()) for e in collectives)


def flat(named: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in named.values()])


def loss_and_gradients(
    stage: Stage, serial: GPT, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return the serial model's loss and gradients, and the gradients from this stage's work alone.

    They differ in the embedding, which the first and the last stage each use once.
    """
    output = nn.Parameter(serial.tokens.weight.detach().clone())
    serial.zero_grad()
    serial.unembed.weight = output
    try:
        loss = training.token_loss(serial(inputs), labels)
        loss.backward()
    finally:
        serial.unembed.weight = serial.tokens.weight
    uses = serial.tokens.weight.grad, output.grad
    alone = [use for use, own in zip(uses, (stage.first, stage.last), strict=True) if own]
    gradients = {name: parameter.grad for name, parameter in serial.named_parameters()}
    return (
        loss.detach(),
        gradients | {"tokens.weight": sum(uses)},
        gradients | {"tokens.weight": sum(alone)},
    )


def draw_tokens(draw: Random, *shape: int) -> tuple[Tensor, Tensor]:
    """Draw tokens and targets of `config_for`, the same on all ranks."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    return tuple(torch.randint(11, (2, *shape, 5), generator=generator))


def meshes(size: int) -> dict[str, Mesh]:
    """Return meshes of this number of ranks by their names."""
    sizes = SIZES.get(size, [(size, 1, 1)])
    found = [dict(zip(DIMS, s, strict=True)) for s in sizes]
    return {name_of(mesh): mesh for mesh in found}


def name_of(mesh: Mesh) -> str:
    return " × ".join(f"{size} {dim}" for dim, size in mesh.items())
