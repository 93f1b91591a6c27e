"""Pipeline parallelism: idle time, activations held, messages between stages.

Symbols: p ranks in a row, v stages on each, m micro-batches in a step, of equal length. The forward
and the backward pass of a micro-batch through a rank's whole share take T_F and T_B seconds.
Huang et al. 2019 (GPipe, arXiv:1811.06965) and Narayanan et al. 2021 (arXiv:2104.04473) for bubbles
and messages, Korthikanti et al. 2022 (arXiv:2205.05198) for activations of interleaved stages,
Qi et al. 2024 (arXiv:2401.10241) for zero bubble. This models a machine in order to compare
designs, and is not a measurement.
"""

from collections.abc import Callable
from dataclasses import dataclass

from parlab.costs.collectives import Cost
from parlab.costs.tensor_parallel import Layer


def bubble(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """Return idle time over ideal time: (p − 1)/(vm), for GPipe, 1F1B (v = 1), interleaved 1F1B.

    Narayanan et al., sections 2.2.1 and 2.2.2. Raises ValueError if any number is less than 1, and
    if v > 1 and m is not a multiple of p, as the interleaved schedule requires.
    """
    _check(ranks, micro_batches, chunks)
    if chunks > 1 and micro_batches % ranks:
        raise ValueError(
            f"interleaved stages need micro-batches in multiples of the {ranks} ranks, "
            f"not {micro_batches}"
        )
    return (ranks - 1) / (chunks * micro_batches)


def idle_share(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """Return idle time over *all* time, (p − 1)/(vm + p − 1): the form of GPipe (section 2.3)."""
    over_ideal = bubble(ranks, micro_batches, chunks)
    return over_ideal / (1 + over_ideal)


def step_seconds(
    ranks: int, micro_batches: int, forward: float, backward: float, chunks: int = 1
) -> float:
    """Return the seconds of a step without messages: (m + (p − 1)/v)(T_F + T_B)."""
    ideal = micro_batches * (forward + backward)
    return ideal * (1 + bubble(ranks, micro_batches, chunks))


def gain_over_naive(ranks: int, micro_batches: int) -> float:
    """Return how many times as fast a pipeline is as the naive split: pm/(m + p − 1).

    The naive split has one micro-batch, which passes through one rank after the other.
    """
    return ranks * micro_batches / (micro_batches + ranks - 1)


def micro_batches_for(ranks: int, limit: float, chunks: int = 1) -> int:
    """Return the fewest micro-batches for a bubble of at most `limit` of the ideal time.

    With v > 1, the number is a multiple of p. Raises ValueError unless `limit` is above 0.
    """
    _check(ranks, 1, chunks)
    if not limit > 0:
        raise ValueError(f"a pipeline always has a bubble: {limit} of the ideal time is too little")
    micro_batches = step = ranks if chunks > 1 else 1
    while bubble(ranks, micro_batches, chunks) > limit:
        micro_batches += step
    return micro_batches


def best_micro_batch(
    samples: int, ranks: int, seconds_of: Callable[[int], float]
) -> tuple[int, float]:
    """Return the micro-batch size with the shortest step, and the seconds of that step.

    A step takes (B/b + p − 1)·T(b) (Narayanan et al., equation 1). This tries all b that divide the
    `samples` B of a replica. `seconds_of(b)` returns T(b), the time of the forward and backward
    passes of b samples on one rank.
    """
    _check(ranks, samples, 1)
    sizes = [b for b in range(1, samples + 1) if samples % b == 0]
    seconds = {b: (samples // b + ranks - 1) * seconds_of(b) for b in sizes}
    return min(seconds.items(), key=lambda one: one[1])


def live_gpipe(micro_batches: int) -> int:
    """Return how many micro-batches' activations a rank holds under GPipe: all m."""
    return micro_batches


def live_1f1b(ranks: int, rank: int, micro_batches: int) -> int:
    """Return how many micro-batches' activations a rank holds under 1F1B: min(m, p − rank)."""
    _check(ranks, micro_batches, 1)
    return min(micro_batches, ranks - rank)


def live_interleaved(ranks: int, rank: int, micro_batches: int, chunks: int) -> float:
    """Return how many micro-batches' activations a rank holds under interleaved 1F1B.

    A micro-batch in one of the v stages counts 1/v: (2(p − rank − 1) + (v − 1)p + 1)/v. On rank 0,
    this is p(1 + (p − 1)/(pv)), Korthikanti et al., section 4.2.3.
    """
    _check(ranks, micro_batches, chunks)
    if chunks == 1:
        return float(live_1f1b(ranks, rank, micro_batches))
    held = 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1
    return min(chunks * micro_batches, held) / chunks


def message_bytes(layer: Layer, element_bytes: int = 2, tensor_parallel: int = 1) -> float:
    """Return the bytes of an activation between two stages, or of its gradient: e·bsh.

    If t ranks share a layer, each sends its t-th part, e·bsh/t, and the receivers gather the rest
    inside their node (Narayanan et al., section 4.1).
    """
    return element_bytes * layer.numbers / tensor_parallel


def step_messages(ranks: int, micro_batches: int, chunks: int = 1) -> int:
    """Return the messages of all ranks in a step: 2m(pv − 1).

    Each micro-batch sends an activation and a gradient between each pair of neighboring stages.
    """
    _check(ranks, micro_batches, chunks)
    return 2 * micro_batches * (ranks * chunks - 1) if ranks > 1 else 0


def sent_by(rank: int, ranks: int, micro_batches: int, size: float, chunks: int = 1) -> Cost:
    """Return the messages of `size` bytes that one rank sends in a step, and their bytes.

    It sends activations from all its stages except the model's last, and gradients from all except
    the first.
    """
    _check(ranks, micro_batches, chunks)
    if ranks == 1:
        return Cost(0, 0.0)
    borders = 2 * chunks - (rank == 0) - (rank == ranks - 1)
    return Cost(micro_batches * borders, micro_batches * borders * size)


@dataclass(frozen=True)
class ZeroBubble:
    """A row of Qi et al.'s Table 2: idle seconds of a rank, and the most micro-batches it holds."""

    bubble: float
    held: int


def zero_bubble(
    ranks: int, forward: float, for_inputs: float, for_weights: float
) -> dict[str, ZeroBubble]:
    """Return the rows for 1F1B, ZB-H1, and ZB-H2.

    The backward pass has two parts: T_B for inputs, and T_W for weights. The idle time is
    (p − 1)(T_F + T_B + kT_W) with k = 1, −1, and −2. A rank holds p, p, and 2p − 1 micro-batches.
    Each takes M_B bytes until its backward pass for inputs.
    """
    _check(ranks, 1, 1)
    rows = {"1F1B": (1, ranks), "ZB-H1": (-1, ranks), "ZB-H2": (-2, 2 * ranks - 1)}
    return {
        name: ZeroBubble((ranks - 1) * (forward + for_inputs + k * for_weights), held)
        for name, (k, held) in rows.items()
    }


def _check(ranks: int, micro_batches: int, chunks: int) -> None:
    if min(ranks, micro_batches, chunks) < 1:
        raise ValueError(
            "a pipeline has at least one rank, one stage on each and one micro-batch, "
            f"not {ranks}, {chunks} and {micro_batches}"
        )
