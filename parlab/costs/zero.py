"""The costs of ZeRO: formulas for the bytes on each rank by kind, for traffic, and for seconds.

Symbols: Ψ parameters, N ranks. Stage 0 is plain data parallelism. Stage 1 shards the optimizer
states, stage 2 also the gradients, and stage 3 also the parameters (Rajbhandari et al. 2020,
arXiv:1910.02054, sections 5 and 7). Activations are left out, because no stage changes them.
"""

from dataclasses import dataclass

from parlab.costs.collectives import Cost, ring_all_gather, ring_all_reduce, ring_reduce_scatter

STAGES = (0, 1, 2, 3)
# The first stage in which each rank holds only a shard of this kind.
_SPLIT_FROM = {"parameters": 3, "gradients": 2, "optimizer_states": 1}


@dataclass(frozen=True)
class Recipe:
    """Bytes that training keeps for each parameter, by kind."""

    parameters: int
    gradients: int
    optimizer_states: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer_states


# Adam keeps two moments, and SGD with momentum one number. In mixed precision, the optimizer also
# has the float32 copy of the parameters (section 3.1: K = 12 for Adam).
MIXED_ADAM = Recipe(2, 2, 4 + 4 + 4)
MIXED_MOMENTUM = Recipe(2, 2, 4 + 4)
FLOAT32_ADAM = Recipe(4, 4, 4 + 4)
FLOAT32_MOMENTUM = Recipe(4, 4, 4)


def model_states(
    parameters: float, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM
) -> dict[str, float]:
    """Return the bytes on each rank between two steps, by kind (Table 1 of the paper).

    Raises ValueError for an unknown stage, and for less than one rank.
    """
    _check(world_size, stage)
    return {
        kind: getattr(recipe, kind) * parameters / (world_size if stage >= split else 1)
        for kind, split in _SPLIT_FROM.items()
    }


def total(parameters: float, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM) -> float:
    """Return the bytes of all model states on each rank."""
    return sum(model_states(parameters, world_size, stage, recipe).values())


def largest_model(
    device_bytes: float, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM
) -> float:
    """Return the parameters whose model states fill a device, without space for activations."""
    return device_bytes / total(1, world_size, stage, recipe)


def step_cost(size: float, world_size: int, stage: int) -> Cost:
    """Return the cost of a step's collectives on rings, for `size` bytes of parameters.

    The gradients have as many bytes. Stages 1 and 2 reduce-scatter gradients and all-gather
    parameters. Stage 3 all-gathers parameters before the forward pass and again before the backward
    pass, and reduce-scatters gradients.
    """
    _check(world_size, stage)
    gather, scatter = ring_all_gather(size, world_size), ring_reduce_scatter(size, world_size)
    return {
        0: ring_all_reduce(size, world_size),
        1: scatter + gather,
        2: scatter + gather,
        3: gather + gather + scatter,
    }[stage]


def bytes_sent(parameters: float, world_size: int, stage: int, element_bytes: int) -> float:
    """Return the bytes that each rank sends: 2, 2, 2, or 3 times (N−1)/N of the parameters."""
    return step_cost(parameters * element_bytes, world_size, stage).bytes


def tokens_to_hide(flop_per_second: float, beta: float, element_bytes: int = 2) -> float:
    """Return the fewest tokens per rank for which stage 3's forward all-gather can fully overlap.

    The forward pass computes 2Ψ FLOP per token, and sends element_bytes·Ψ bytes. The backward pass
    needs no more tokens, because it computes twice as much and sends twice as much.
    """
    return element_bytes * beta * flop_per_second / 2


def offload_bytes(
    parameters: float, world_size: int, gradient_bytes: int = 2, parameter_bytes: int = 2
) -> tuple[float, float]:
    """Return the bytes to and from the host in a step if the optimizer runs there.

    Gradients go to the host, and parameters come back. ZeRO-Offload keeps the float32 states and
    the update on the CPU, so only 16-bit numbers are transferred (Ren et al. 2021,
    arXiv:2101.06840, section 3): 4Ψ in total, here for a rank's shard.
    """
    return gradient_bytes * parameters / world_size, parameter_bytes * parameters / world_size


def prefetch_seconds(
    compute: float, gather: float, layers: int, *, prefetch: bool, scatter: float = 0.0
) -> float:
    """Return the seconds of one pass over equal layers that are gathered one at a time.

    Without prefetch, each layer waits for its own gather. With prefetch, the gather of the next
    layer overlaps with the computation. The pass then waits only for the first gather, and if a
    gather takes longer than a layer, for the difference. A blocking `scatter` after each layer adds
    its own time.
    """
    if not prefetch:
        return layers * (gather + compute + scatter)
    return gather + compute + (layers - 1) * max(compute, gather) + layers * scatter


def _check(world_size: int, stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r} of ZeRO: use 0 (plain data parallelism), 1, 2 or 3")
    if world_size < 1:
        raise ValueError(f"a world has at least one rank, not {world_size}")
