"""What data parallelism costs: bytes, seconds and efficiency in closed form.

Symbols: Ψ parameters, N ranks; messages as in `parlab.costs.collectives`. A model of a machine, to
compare designs with; not a measurement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parlab.costs.collectives import Cost, Link, ring_all_reduce

# A matrix product costs twice as much backward as forward (gradients of both factors), so two
# thirds of a step's arithmetic lie in the backward pass, where communication can hide.
BACKWARD_SHARE = 2 / 3


def gradient_bytes(parameters: int, element_bytes: int = 4) -> int:
    """Bytes of one full gradient; 4 an element for float32, 2 for 16-bit formats."""
    return parameters * element_bytes


def bytes_sent(parameters: int, world_size: int, element_bytes: int = 4) -> float:
    """Bytes that each rank sends in a step: 2(N−1)/N of a gradient, by a ring all-reduce.

    For large N that is 2Ψ elements, the baseline of ZeRO (arXiv:1910.02054, section 7.1).
    """
    return ring_all_reduce(gradient_bytes(parameters, element_bytes), world_size).bytes


def training_flop(parameters: int, samples: int) -> int:
    """FLOP of one forward and backward pass, ≈ 6Ψ a sample (a token, for a language model).

    2Ψ forward, since each weight is multiplied once and added once, and 4Ψ backward.
    """
    return 6 * parameters * samples


def step_seconds(compute: float, communication: float, overlap: float = 1.0) -> float:
    """Seconds of a step; `overlap` is the share of the backward pass that communication can use.

    0: the gradients go out when the backward pass has ended. 1: as soon as it has begun, which
    is an upper bound, since the last bucket is only ready at the very end.
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap is a share of the backward pass, from 0 to 1, not {overlap}")
    return compute + max(0.0, communication - overlap * BACKWARD_SHARE * compute)


@dataclass(frozen=True)
class Machine:
    """What each rank has: `flop_per_second` that training reaches, a link, and an all-reduce.

    `all_reduce(size in bytes, number of ranks)` is the cost of an algorithm, the ring's for one.
    """

    flop_per_second: float
    link: Link
    all_reduce: Callable[[float, int], Cost] = ring_all_reduce


@dataclass(frozen=True)
class Work:
    """A model of `parameters`, whose gradients have `element_bytes` bytes an element."""

    parameters: int
    element_bytes: int = 4


def weak_efficiency(
    work: Work, machine: Machine, samples_per_rank: int, world_size: int, overlap: float = 1.0
) -> float:
    """Throughput of N ranks over N times that of one, at a fixed number of samples per rank."""
    compute = training_flop(work.parameters, samples_per_rank) / machine.flop_per_second
    communication = _all_reduce_seconds(work, machine, world_size)
    return compute / step_seconds(compute, communication, overlap)


def strong_efficiency(
    work: Work, machine: Machine, global_batch: int, world_size: int, overlap: float = 1.0
) -> float:
    """Speed-up over N at a fixed global batch: each rank's share of it shrinks as N grows."""
    alone = training_flop(work.parameters, global_batch) / machine.flop_per_second
    communication = _all_reduce_seconds(work, machine, world_size)
    return alone / world_size / step_seconds(alone / world_size, communication, overlap)


def samples_to_hide(work: Work, machine: Machine, world_size: int) -> float:
    """Samples per rank from which the backward pass is as long as the all-reduce."""
    backward = BACKWARD_SHARE * training_flop(work.parameters, 1) / machine.flop_per_second
    return _all_reduce_seconds(work, machine, world_size) / backward


def _all_reduce_seconds(work: Work, machine: Machine, world_size: int) -> float:
    size = gradient_bytes(work.parameters, work.element_bytes)
    return machine.all_reduce(size, world_size).seconds(machine.link)


@dataclass(frozen=True)
class Transfer:
    """One bucket's all-reduce: gradients `ready`, first byte out at `start`, done at `end` (s)."""

    ready: float
    start: float
    end: float


def bucket_timeline(backward: Sequence[float], communication: Sequence[float]) -> list[Transfer]:
    """When each bucket is ready, starts and ends, from the start of the backward pass (s).

    `backward[i]` is how long the backward pass of bucket i's layers takes, `communication[i]`
    how long its all-reduce takes. Buckets go out one after the other over the one link.
    """
    transfers: list[Transfer] = []
    ready = free = 0.0
    for computing, sending in zip(backward, communication, strict=True):
        ready += computing
        start = max(ready, free)
        free = start + sending
        transfers.append(Transfer(ready, start, free))
    return transfers


def steps_to_loss(batch_size: float, critical_batch: float, fewest_steps: float) -> float:
    """Optimizer steps to a given loss: S = S_min (1 + B_crit / B).

    With E = B·S examples this is (S/S_min − 1)(E/E_min − 1) = 1, B_crit = E_min / S_min:
    McCandlish et al. 2018 (arXiv:1812.06162), section 2.
    """
    return fewest_steps * (1 + critical_batch / batch_size)


def examples_to_loss(batch_size: float, critical_batch: float, fewest_steps: float) -> float:
    """Training examples to a given loss: E = E_min (1 + B / B_crit), with E_min = B_crit·S_min."""
    return batch_size * steps_to_loss(batch_size, critical_batch, fewest_steps)
