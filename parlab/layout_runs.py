"""Runs layouts on an emulated cluster, to compare a planner's predictions with measured times.

    seconds = measured_seconds(model, layouts, cluster)       # collective over all ranks

A step of a layout has real messages and collectives of the right sizes, in the order of the 1F1B
schedule with ZeRO-1. Instead of computing, the ranks sleep for the time that the computation would
take, so eight ranks do not need eight cores.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from parlab import timing
from parlab.layouts import ELEMENT_BYTES, Cluster, Layout, Model
from parlab.network import compute, emulated_group, sub_group
from parlab.rank import comm, rank


def measured_seconds(
    model: Model, layouts: Sequence[Layout], cluster: Cluster, rounds: int = 3
) -> list[float]:
    """Return the emulated seconds of each layout's fastest step, as the slowest rank measures it.

    Collective over all ranks. Raises ValueError unless there are as many ranks as the cluster has
    devices.
    """
    whole = emulated_group(cluster.network)
    group_of = cache(partial(_group, whole))
    steps = {str(layout): _Run(model, layout, cluster, whole, group_of).step for layout in layouts}
    seconds = timing.fastest_seconds(steps, comm, rounds, warm_up=0)
    return [seconds[str(layout)] for layout in layouts]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two lists of numbers without ties."""
    orders = [
        torch.tensor(values, dtype=torch.float64).argsort().argsort() for values in (one, other)
    ]
    return float(torch.corrcoef(torch.stack(orders).double())[0, 1])


def _group(whole: Any, size: int, stride: int) -> Any:
    """Return this rank's group of `size` ranks whose numbers differ by `stride`. Collective."""
    own = None
    for first in range(comm.size):
        if first // stride % size == 0:
            members = range(first, first + size * stride, stride)
            made = sub_group(whole, members)
            own = made if rank in members else own
    return own


class _Run:
    """This rank's part of a step of a layout. Making it is collective."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        cluster: Cluster,
        whole: Any,
        group_of: Callable[[int, int], Any],
    ) -> None:
        self.layout, self.whole = layout, whole
        self.micro_batches = layout.micro_batches(model)
        self.stage = rank // layout.tp % layout.pp
        self.layers = model.layers // layout.pp
        flop = model.layer_flop(layout.micro_batch) / layout.tp
        self.half_layer = flop / 2 / cluster.flop_per_second  # seconds forward
        # A float32 tensor has as many bytes as twice as many 16-bit numbers.
        self.activation = _tensor(ELEMENT_BYTES * model.activation_numbers(layout.micro_batch))
        weights = self.layers * model.layer_parameters // layout.tp
        weights += model.embedding_parameters if self.stage in (0, layout.pp - 1) else 0
        self.shard = _tensor(ELEMENT_BYTES * weights // layout.dp)
        self.flat = self.shard.new_zeros(layout.dp * self.shard.numel())
        self.tp = group_of(layout.tp, 1) if layout.tp > 1 else None
        self.dp = group_of(layout.dp, layout.tp * layout.pp) if layout.dp > 1 else None
        self.sent: list[Any] = []

    def step(self) -> None:
        """Run the 1F1B schedule, then reduce-scatter the gradients and all-gather the weights."""
        ahead = min(self.micro_batches, self.layout.pp - 1 - self.stage)
        for _ in range(ahead):
            self._pass(forward=True)
        for _ in range(self.micro_batches - ahead):
            self._pass(forward=True)
            self._pass(forward=False)
        for _ in range(ahead):
            self._pass(forward=False)
        for work in self.sent:
            work.wait()
        self.sent.clear()
        if self.layout.dp > 1:
            dist.reduce_scatter_single(self.shard, self.flat, group=self.dp)
            dist.all_gather_single(self.flat, self.shard, group=self.dp)

    def _pass(self, forward: bool) -> None:
        """Receive, compute the layers with their all-reduces, and send."""
        way = 1 if forward else -1
        if 0 <= self.stage - way < self.layout.pp:
            source = rank - way * self.layout.tp
            dist.recv(torch.empty_like(self.activation), source, group=self.whole)
        for _ in range(2 * self.layers):
            compute(self.half_layer if forward else 2 * self.half_layer)
            if self.layout.tp > 1:
                dist.all_reduce(self.activation, group=self.tp)
        if 0 <= self.stage + way < self.layout.pp:
            destination = rank + way * self.layout.tp
            self.sent.append(dist.isend(self.activation.clone(), destination, group=self.whole))


def _tensor(size: int) -> torch.Tensor:
    return torch.zeros(size // 4)
