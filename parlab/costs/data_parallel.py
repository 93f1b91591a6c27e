"""The costs of data parallelism: formulas for bytes, seconds, and efficiency.

Symbols: Ψ parameters, N ranks; messages as in `parlab.costs.collectives`. This models a machine in
order to compare designs, and is not a measurement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parlab.costs.collectives import Cost, Link, ring_all_reduce

# The backward pass of a matrix product computes gradients of both factors, which costs twice as
# much as the forward pass. So two thirds of a step's arithmetic can overlap with communication.
BACKWARD_SHARE = 2 / 3


def gradient_bytes(parameters: int, element_bytes: int = 4) -> int:
    """Return the bytes of a full gradient; 4 per element in float32, 2 in 16-bit formats."""
    return parameters * element_bytes


def bytes_sent(parameters: int, world_size: int, element_bytes: int = 4) -> float:
    """Return the bytes that each rank sends in a step: 2(N−1)/N of a gradient, on a ring.

    For large N, these are 2Ψ elements, the baseline of ZeRO (arXiv:1910.02054, section 7.1).
    """
    return ring_all_reduce(gradient_bytes(parameters, element_bytes), world_size).bytes


def training_flop(parameters: int, samples: int) -> int:
    """Return the FLOP of a forward and backward pass, ≈ 6Ψ per sample (or token, for text).

    The forward pass takes 2Ψ, because it multiplies and adds each weight once, the backward pass
    4Ψ.
    """
    return 6 * parameters * samples


def step_seconds(compute: float, communication: float, overlap: float = 1.0) -> float:
    """Return the seconds of a step if messages can overlap a share `overlap` of the backward pass.

    With 0, the ranks send gradients after the backward pass. With 1, they start at its beginning,
    which is an upper bound, because the last bucket is ready only at the end.
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap is a share of the backward pass, from 0 to 1, not {overlap}")
    return compute + max(0.0, communication - overlap * BACKWARD_SHARE * compute)


@dataclass(frozen=True)
class Machine:
    """The hardware of each rank: `flop_per_second` in training, its link, and its all-reduce.

    `all_reduce(size in bytes, number of ranks)` returns the cost of an algorithm, such as the ring.
    """

    flop_per_second: float
    link: Link
    all_reduce: Callable[[float, int], Cost] = ring_all_reduce


@dataclass(frozen=True)
class Work:
    """A model with `parameters`, whose gradients have `element_bytes` bytes per element."""

    parameters: int
    element_bytes: int = 4


def weak_efficiency(
    work: Work, machine: Machine, samples_per_rank: int, world_size: int, overlap: float = 1.0
) -> float:
    """Return the throughput of N ranks over N times that of one rank, at equal samples per rank."""
    compute = training_flop(work.parameters, samples_per_rank) / machine.flop_per_second
    communication = _all_reduce_seconds(work, machine, world_size)
    return compute / step_seconds(compute, communication, overlap)


def strong_efficiency(
    work: Work, machine: Machine, global_batch: int, world_size: int, overlap: float = 1.0
) -> float:
    """Return the speedup divided by N at a fixed global batch, which the ranks share equally."""
    alone = training_flop(work.parameters, global_batch) / machine.flop_per_second
    communication = _all_reduce_seconds(work, machine, world_size)
    return alone / world_size / step_seconds(alone / world_size, communication, overlap)


def samples_to_hide(work: Work, machine: Machine, world_size: int) -> float:
    """Return the samples per rank for which the backward pass takes as long as the all-reduce."""
    backward = BACKWARD_SHARE * training_flop(work.parameters, 1) / machine.flop_per_second
    return _all_reduce_seconds(work, machine, world_size) / backward


def _all_reduce_seconds(work: Work, machine: Machine, world_size: int) -> float:
    size = gradient_bytes(work.parameters, work.element_bytes)
    return machine.all_reduce(size, world_size).seconds(machine.link)


@dataclass(frozen=True)
class Transfer:
    """The times of one bucket's all-reduce in seconds: gradients are `ready`, `start`, `end`."""

    ready: float
    start: float
    end: float


def bucket_timeline(backward: Sequence[float], communication: Sequence[float]) -> list[Transfer]:
    """Return when each bucket is ready, starts, and ends.

    Times are in seconds from the start of the backward pass.
    `backward[i]` is the time of the backward pass of bucket i's layers, and `communication[i]` the
    time of its all-reduce. The link transfers one bucket after the other.
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
    """Return the optimizer steps to a given loss: S = S_min (1 + B_crit / B).

    With E = B·S examples this is (S/S_min − 1)(E/E_min − 1) = 1, B_crit = E_min / S_min:
    McCandlish et al. 2018 (arXiv:1812.06162), section 2.
    """
    return fewest_steps * (1 + critical_batch / batch_size)


def examples_to_loss(batch_size: float, critical_batch: float, fewest_steps: float) -> float:
    """Return the examples to a given loss: E = E_min (1 + B / B_crit); E_min = B_crit·S_min."""
    return batch_size * steps_to_loss(batch_size, critical_batch, fewest_steps)
