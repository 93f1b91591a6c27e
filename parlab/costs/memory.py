"""Training in less memory: bytes and FLOP of recomputation, offload, the loss, and a whole step.

Symbols: b samples of s tokens, hidden size h, a heads, l layers, V tokens of the vocabulary, Ψ
parameters. Chen et al. 2016 (arXiv:1604.06174) for segments, Korthikanti et al. 2022
(arXiv:2205.05198) for the tensors of a layer, McCandlish et al. 2018 (arXiv:1812.06162) for the
noise of gradients. This models a machine in order to compare designs, and is not a measurement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from parlab.costs.optimizers import states_bytes
from parlab.costs.tensor_parallel import Layer, attention_share

# Arrays of tokens × V numbers that `cross_entropy` has at its peak, in the backward pass: the
# logits, the log-softmax, and the gradient of each.
LOGIT_ARRAYS = 4


@dataclass(frozen=True)
class Kept:
    """A kept tensor of a layer: its bytes, and the FLOP to recompute it from the one before."""

    name: str
    bytes: float
    flop: float


@dataclass(frozen=True)
class Plan:
    """Which tensors a layer recomputes, the bytes that it keeps, and the FLOP that it repeats."""

    recomputed: tuple[str, ...]
    bytes: float
    flop: float


def layer_tensors(layer: Layer, *, fused: bool = False) -> list[Kept]:
    """Return the tensors that a layer keeps besides its input, in 16 bits with dropout, in order.

    With the 2sbh bytes of the input, they take the sbh(34 + 5as/h) of Korthikanti et al., Table 2.
    `flop` counts matrix products: a norm, a GELU, or a dropout mask from a restored generator has
    none. `fused` attention keeps no scores, and computes them again in its own backward pass.
    """
    n, h, s = layer.numbers, layer.hidden, layer.sequence
    tensors = [
        Kept("input of QKV (norm)", 2 * n, 0.0),
        Kept("Q, K, V", 6 * n, 6.0 * n * h),
        Kept("softmax, its dropout", attention_share(layer) * n, 2.0 * n * s),
        Kept("output of attention", 2 * n, 2.0 * n * s),
        Kept("mask after attention", n, 0.0),
        Kept("input of the second norm", 2 * n, 2.0 * n * h),
        Kept("input of the MLP (norm)", 2 * n, 0.0),
        Kept("input of the GELU", 8 * n, 8.0 * n * h),
        Kept("output of the GELU", 8 * n, 0.0),
        Kept("mask after the MLP", n, 0.0),
    ]
    if not fused:
        return tensors
    both = Kept("output of attention", 2 * n, 4.0 * n * s)
    return [both if t.name == both.name else t for t in tensors if not t.name.startswith("softmax")]


def frontier(layer: Layer, *, fused: bool = False) -> list[Plan]:
    """Return the plans that no other plan beats in both bytes and FLOP, from most to fewest bytes.

    If a tensor's predecessor is dropped, too, it is recomputed first. The FLOP of a plan are
    therefore the sum over its tensors.
    """
    tensors = layer_tensors(layer, fused=fused)
    every = [
        _plan(layer, tensors, dropped)
        for count in range(len(tensors) + 1)
        for dropped in combinations(tensors, count)
    ]
    best: list[Plan] = []
    for plan in sorted(every, key=lambda plan: (plan.flop, plan.bytes)):
        if not best or plan.bytes < best[-1].bytes:
            best.append(plan)
    return best


def _plan(layer: Layer, tensors: Sequence[Kept], dropped: Sequence[Kept]) -> Plan:
    kept = 2 * layer.numbers + sum(t.bytes for t in tensors if t not in dropped)
    return Plan(tuple(t.name for t in dropped), kept, sum(t.flop for t in dropped))


def forward_flop(layer: Layer) -> float:
    """Return the FLOP of a layer's forward pass, 24bsh² + 4bs²h. A backward pass has twice that."""
    return layer.numbers * (24.0 * layer.hidden + 4.0 * layer.sequence)


def segments_peak(layers: int, segments: int, kept: float, input_bytes: float) -> float:
    """Return the peak bytes of activations, with equal layers in `segments` checkpointed segments.

    The forward pass keeps the inputs of all segments. The backward pass recomputes one segment at a
    time. The peak is in the longest one, whose layers keep `kept` bytes each.
    """
    if not 1 <= segments <= layers:
        raise ValueError(f"{layers} layers make 1 to {layers} segments, not {segments}")
    return segments * input_bytes + math.ceil(layers / segments) * kept


def best_segments(layers: int, kept: float, input_bytes: float) -> float:
    """Return the unrounded number of segments that minimizes `segments_peak`, √(l·kept/input)."""
    return math.sqrt(layers * kept / input_bytes)


def recompute_slowdown(forwards: float = 1.0) -> float:
    """Return by what factor repeating `forwards` forward passes increases the FLOP of a step."""
    return (3 + forwards) / 3


def hidden_to_offload(
    bytes_per_number: float, sequence: int, flop_per_second: float, bandwidth: float
) -> float:
    """Return the smallest hidden size for which the layer's forward pass hides an offload.

    For it, sending `bytes_per_number`·sbh bytes takes as long as computing 24bsh² + 4bs²h FLOP. The
    batch and one h cancel. The result is 0 if attention alone takes long enough.
    """
    return max(0.0, (bytes_per_number * flop_per_second / bandwidth - 4 * sequence) / 24)


def noise(small_batch: int, large_batch: int, small: float, large: float) -> tuple[float, float]:
    """Return unbiased estimates of |g|² and of tr Σ (McCandlish et al., appendix A.1).

    Args:
        small_batch: samples behind each small gradient.
        large_batch: samples behind the large gradient.
        small: squared norm of a small gradient, or the mean over several.
        large: squared norm of the large gradient.
    """
    if not 0 < small_batch < large_batch:
        raise ValueError(
            f"batches of {small_batch} and {large_batch}: both must be above 0, the second larger"
        )
    squared_norm = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    return squared_norm, (small - large) / (1 / small_batch - 1 / large_batch)


@dataclass(frozen=True)
class Step:
    """A training step of a GPT on one of `ranks` devices, in mixed precision with 16-bit numbers.

    Attributes:
        micro_batch: sequences that go through the model at once.
        optimizer: a key of `optimizers.OPTIMIZERS`.
        keep: bytes that a layer keeps for each of its sbh numbers; 0 if nothing is recomputed.
        recompute: whether layers keep only their inputs, and are recomputed one at a time.
        loss_tokens: tokens whose logits exist at once; 0 for all tokens.
        stage: ZeRO's stage.
        offload: whether the inputs that `recompute` keeps are stored on the host.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    micro_batch: int
    fused: bool = False
    keep: float = 0.0
    recompute: bool = False
    loss_tokens: int = 0
    optimizer: str = "Adam"
    stage: int = 0
    ranks: int = 1
    offload: bool = False

    @property
    def layer(self) -> Layer:
        return Layer(self.micro_batch, self.sequence, self.hidden, self.heads)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all parameters. The output layer shares the embedding's weight."""
        h = self.hidden
        block = [(h,)] * 4 + [(3 * h, h), (3 * h,), (h, h), (h,)]
        block += [(4 * h, h), (4 * h,), (h, 4 * h), (h,)]
        return [(self.vocabulary, h), (self.sequence, h), (h,), (h,)] + self.layers * block

    def bytes(self) -> dict[str, float]:
        """Return the bytes on a device at the peak of the step, by kind."""
        psi, split = self.parameters, [self.ranks if self.stage >= i else 1 for i in (3, 2, 1)]
        states = 4 * psi + states_bytes(self.optimizer, self.shapes)  # with the master weights
        return {
            "parameters": 2 * psi / split[0],
            "gradients": 2 * psi / split[1],
            "optimizer_states": states / split[2],
            "activations": self.activations(),
            "logits": self.logits(),
        }

    def activations(self) -> float:
        """Return the bytes of all layers at the peak: when, or after, the backward pass starts."""
        share = 34 + (0 if self.fused else attention_share(self.layer))
        numbers = self.layer.numbers
        if not self.recompute:
            return self.layers * numbers * (self.keep or share)
        inputs = 2 if self.offload else self.layers  # one in use, one arriving
        return numbers * (2 * inputs + share)

    def logits(self) -> float:
        """Return the bytes of logits and what follows from them; in chunks, also h's gradient."""
        tokens = self.micro_batch * self.sequence
        if not self.loss_tokens:
            return LOGIT_ARRAYS * 4.0 * tokens * self.vocabulary
        return 4.0 * (self.loss_tokens * self.vocabulary + tokens * self.hidden)

    def total(self) -> float:
        """Return the bytes of all kinds together."""
        return sum(self.bytes().values())

    def but(self, **changes: object) -> "Step":
        """Return the same step with changes."""
        return replace(self, **changes)


def loader_seconds(compute: float, load: float, workers: int) -> float:
    """Return the seconds of a step if one worker loads a batch in `load` seconds.

    Without workers, the training process loads each batch itself. With workers, `workers` batches
    are loaded at the same time, while the device computes.
    """
    return max(compute, load / workers) if workers else compute + load


def pack(lengths: Sequence[int], row: int) -> list[list[int]]:
    """Put sequences into rows of `row` tokens, longest first, each into the first row with room.

    Raises ValueError for a sequence that is longer than a row.
    """
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        if length > row:
            raise ValueError(f"a sequence of {length} tokens does not fit into a row of {row}")
        room = next((held for held in rows if sum(held) + length <= row), None)
        if room is None:
            rows.append([length])
        else:
            room.append(length)
    return rows
