"""Lab 10's training step against PyTorch's fully_shard over parallelize_module, on a 2-D mesh.

Both sides train the same GPT from the same start on 2 × 2 ranks, with the same micro-batches, the
same clipping, and Adam, and reach the same losses. Ours keeps whole weights and shards Adam's
states (ZeRO-1). The library shards the weights as well, and keeps them whole within a step. It runs
on Gloo. Ours is measured on Gloo and on `group` (MPI).
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch.distributed as dist

TP, MICRO_BATCHES, SAMPLES = 2, 2, 4  # for each replica
MAX_NORM, LR = 1.0, 3e-3


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("10_composing")


def _groups(mesh: dict[str, int], backend: str) -> "dict[str, dist.ProcessGroup]":
    """Return this rank's groups. All ranks create all groups in the same order."""
    import torch.distributed as dist

    from parlab.rank import rank

    lists = {dim: lab()["mesh_groups"](mesh, dim) for dim in mesh}
    lists |= {"all": [list(range(dist.get_world_size()))]}
    lists["embedding"] = lab()["embedding_groups"](mesh)
    own = {}
    for name, every in lists.items():
        for ranks in every:
            made = dist.new_group(ranks, backend=backend)
            if rank in ranks:
                own[name] = made
    return own


def _ours(backend: str, tokens: Any, targets: Any) -> Callable[[], float]:
    """Return a function that takes a step on a mesh without a pipeline, and returns the loss."""
    from parlab.models import GPTConfig
    from parlab.parallel_gpt import ShardedAdam, Stage
    from parlab.rank import world_size

    mesh = {"dp": world_size // TP, "pp": 1, "tp": TP}
    own = _groups(mesh, backend)
    stage = Stage(GPTConfig(), 0, own["tp"], 0, 1)
    adam = ShardedAdam(stage, own["dp"], {"norm": TP, "column": 1, "embedding": TP}, LR)
    update = functools.partial(
        lab()["zero_step"], max_norm=MAX_NORM, gradient_norm=lab()["gradient_norm"]
    )
    arguments = (stage, adam, tokens, targets, own, lab()["pipeline_pass"], update)
    return functools.partial(lab()["train_step"], *arguments)


def _set_up(backend: str) -> Pair:
    """Return both sides after three steps, in which their losses must be equal."""
    import torch

    from parlab.libraries.composing import ShardedParallelGPT
    from parlab.models import GPTConfig
    from parlab.parallel_gpt import serial_gpt
    from parlab.rank import group, rank, world_size  # starts torch.distributed
    from parlab.training import text_batches

    assert group.size() == world_size
    rows = MICRO_BATCHES * SAMPLES
    ((tokens, targets),) = text_batches(1, world_size // TP * rows, 64)
    replica = slice(rank // TP * rows, (rank // TP + 1) * rows)
    own = [part[replica].unflatten(0, (MICRO_BATCHES, SAMPLES)) for part in (tokens, targets)]
    make_adam = functools.partial(torch.optim.Adam, lr=LR)
    library = ShardedParallelGPT(serial_gpt(GPTConfig(), 0), TP, make_adam, MAX_NORM)
    ours = _ours(backend, *own)
    for _ in range(3):
        assert abs(ours() - library.train(*own)) < 1e-3, "the two sides train differently"

    def timed(step: Callable[[], float]) -> Callable[[], None]:
        # A returned number would count as seconds.
        def once() -> None:
            step()

        return once

    return Pair(timed(ours), timed(functools.partial(library.train, *own)))


def _register(backend: str) -> None:
    def set_up() -> Pair:
        return _set_up(backend)

    shown = "`group` (MPI)" if backend == "mpi4py" else "Gloo"
    set_up.__name__ = f"composed_step_{'group' if backend == 'mpi4py' else 'gloo'}"
    benchmark(
        peer="fully_shard over parallelize_module, on Gloo",
        work=f"training step on {shown}: GPT of 2 blocks of 64, 2 dp × 2 tp, {MICRO_BATCHES} "
        f"micro-batches of {SAMPLES} samples of 64 bytes, 4 ranks, clipped Adam",
        target=1.0,
        ranks=4,
        rounds=20,
        calls=2,
    )(set_up)


for _backend in ("gloo", "mpi4py"):
    _register(_backend)
