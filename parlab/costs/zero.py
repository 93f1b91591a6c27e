"""What ZeRO costs: bytes on each rank by kind, traffic, and seconds, in closed form.

Symbols: Ψ parameters, N ranks. Stage 0 is plain data parallelism; stage 1 splits the optimizer
states, stage 2 the gradients too, stage 3 the parameters too (Rajbhandari et al. 2020,
arXiv:1910.02054, sections 5 and 7). Activations are not in it: no stage changes them.
"""

from dataclasses import dataclass

from parlab.costs.collectives import Cost, ring_all_gather, ring_all_reduce, ring_reduce_scatter

STAGES = (0, 1, 2, 3)
# From which stage on each rank holds a shard of a kind only.
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


# Adam keeps two moments, SGD with momentum one number; in mixed precision the optimizer has the
# float32 copy of the parameters too (section 3.1: K = 12 for Adam).
MIXED_ADAM = Recipe(2, 2, 4 + 4 + 4)
MIXED_MOMENTUM = Recipe(2, 2, 4 + 4)
FLOAT32_ADAM = Recipe(4, 4, 4 + 4)
FLOAT32_MOMENTUM = Recipe(4, 4, 4)


def model_states(
    parameters: float, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM
) -> dict[str, float]:
    """Bytes on each rank between two steps, by kind: Table 1 of the paper.

    Raises ValueError for a stage that is none, and for a world without ranks.
    """
    _check(world_size, stage)
    return {
        kind: getattr(recipe, kind) * parameters / (world_size if stage >= split else 1)
        for kind, split in _SPLIT_FROM.items()
    }


def total(parameters: float, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM) -> float:
    """Bytes of all model states on each rank."""
    return sum(model_states(parameters, world_size, stage, recipe).values())


def largest_model(
    device_bytes: float, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM
) -> float:
    """Parameters whose model states fill a device, and leave nothing for activations."""
    return device_bytes / total(1, world_size, stage, recipe)


def peak_parameters(
    parameters: float, world_size: int, largest: float, *, prefetched: int = 1, element_bytes: int
) -> float:
    """Bytes of parameters at stage 3's peak: the shard, and `prefetched` layers gathered.

    `largest` is the number of parameters of the largest layer; 2 layers with prefetch.
    """
    return element_bytes * (parameters / world_size + prefetched * largest)


def step_cost(size: float, world_size: int, stage: int) -> Cost:
    """The collectives of a step on rings, for `size` bytes of parameters, and as many of gradients.

    Stages 1 and 2: a reduce-scatter of gradients, an all-gather of parameters. Stage 3: an
    all-gather before the forward pass and one before the backward pass, a reduce-scatter.
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
    """Bytes that each rank sends in a step: 2, 2, 2 or 3 times (N−1)/N of the parameters."""
    return step_cost(parameters * element_bytes, world_size, stage).bytes


def tokens_to_hide(flop_per_second: float, beta: float, element_bytes: int = 2) -> float:
    """Tokens on each rank from which stage 3's forward all-gather hides behind the computation.

    2Ψ FLOP a token forward, against element_bytes·Ψ bytes: the larger of the passes' needs. The
    backward pass computes twice as much and sends twice as much.
    """
    return element_bytes * beta * flop_per_second / 2


def offload_bytes(
    parameters: float, world_size: int, gradient_bytes: int = 2, parameter_bytes: int = 2
) -> tuple[float, float]:
    """Bytes to and from the host in a step, with the optimizer there: gradients out, parameters in.

    ZeRO-Offload keeps the float32 states and the update on the CPU, so only 16-bit numbers cross
    (Ren et al. 2021, arXiv:2101.06840, section 3): 4Ψ in all, here for a rank's shard.
    """
    return gradient_bytes * parameters / world_size, parameter_bytes * parameters / world_size


def prefetch_seconds(
    compute: float, gather: float, layers: int, *, prefetch: bool, scatter: float = 0.0
) -> float:
    """Seconds of one pass over equal layers that are gathered one at a time.

    Without prefetch each layer waits for its own gather. With it the next layer's runs beside the
    computation: only the first is waited for, and what a gather takes longer than a layer. A
    `scatter` after each layer, which blocks, comes on top.
    """
    if not prefetch:
        return layers * (gather + compute + scatter)
    return gather + compute + (layers - 1) * max(compute, gather) + layers * scatter


def _check(world_size: int, stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r} of ZeRO: use 0 (plain data parallelism), 1, 2 or 3")
    if world_size < 1:
        raise ValueError(f"a world has at least one rank, not {world_size}")
