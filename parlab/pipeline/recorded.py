"""Records when a rank's stages compute while a pipeline runs them.

record(share, timeline, ranks, micro_batches)    # from now on
pipeline.step(inputs, targets)
spans = timeline.gather()    # "F0", "B0", … of all ranks: parlab.timeline.draw
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

from parlab.pipeline.actions import backward, forward, text
from parlab.pipeline.stages import Share
from parlab.timeline import Timeline


class Recorded(nn.Module):
    """Wraps `stage`, which has this `number` in the model, and records its passes on `timeline`.

    Micro-batches are numbered in the order of their passes, and from 0 again after `micro_batches`.
    """

    def __init__(
        self, stage: nn.Module, number: int, ranks: int, micro_batches: int, timeline: Timeline
    ) -> None:
        super().__init__()
        self.stage = stage
        self._number, self._ranks, self._timeline = number, ranks, timeline
        self._micro_batches, self._came = micro_batches, 0

    def forward(self, x: Tensor) -> Tensor:
        micro_batch = self._came % self._micro_batches
        start = time.perf_counter()
        y = self.stage(x)
        self._add(text(forward(self._number, micro_batch), self._ranks), start)
        self._came += 1
        return _Begin.apply(y, self, micro_batch)

    def begin(self, micro_batch: int) -> None:
        """Record that the backward pass of a micro-batch begins. torch calls a hook at its end."""
        start = time.perf_counter()

        def end() -> None:
            self._add(text(backward(self._number, micro_batch), self._ranks), start)

        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _add(self, name: str, start: float) -> None:
        self._timeline.add(name, "compute", start, time.perf_counter())


class _Begin(torch.autograd.Function):
    """The identity on a stage's output. Its `backward` begins the backward pass of the stage."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, stage: Recorded, micro_batch: int) -> Tensor:
        ctx.stage, ctx.micro_batch = stage, micro_batch
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.stage.begin(ctx.micro_batch)
        return gradient, None, None


def record(share: Share, timeline: Timeline, ranks: int, micro_batches: int) -> None:
    """Replace each of the rank's stages with one that records its passes."""
    for number, stage in share.own.items():
        share.own[number] = Recorded(stage, number, ranks, micro_batches, timeline)
