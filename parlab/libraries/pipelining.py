"""PyTorch's own pipelines: `torch.distributed.pipelining`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from parlab.pipeline.stages import Share

SCHEDULES: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class LibraryPipeline:
    """Runs a schedule of the library on this rank's stages, over the default group.

    Args:
        name: one of `SCHEDULES`.
        share: this rank's stages.
        micro_batches: number of equal parts into which the library splits a batch.
        loss_function: a function of the last stage's output and the targets of a micro-batch.
    """

    def __init__(
        self,
        name: str,
        share: Share,
        micro_batches: int,
        loss_function: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        stages = [
            PipelineStage(stage, number, share.count, share.device)
            for number, stage in share.own.items()
        ]
        self.first = 0 in share.own
        self.last = share.count - 1 in share.own
        self.schedule = SCHEDULES[name](
            stages if name == "interleaved" else stages[0], micro_batches, loss_fn=loss_function
        )

    def step(self, inputs: Tensor, targets: Tensor) -> float | None:
        """Run a batch forward and backward. Return the mean loss on the last stage's rank."""
        losses: list[Tensor] = []
        arguments = (inputs,) if self.first else ()
        settings = {"target": targets, "losses": losses} if self.last else {}
        self.schedule.step(*arguments, **settings)
        return torch.stack(losses).mean().item() if losses else None


def train_step(
    pipeline: Any, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    """Take a training step of a pipeline. Return the loss on every rank.

    The last rank has the last stage, and `pipeline.step` returns the loss on that rank.
    """
    optimizer.zero_grad()
    loss = pipeline.step(inputs, targets)
    optimizer.step()
    shared = torch.tensor([0.0 if loss is None else loss], dtype=torch.float64)
    device = next(iter(optimizer.param_groups[0]["params"])).device
    shared = shared.to(device)
    dist.broadcast(shared, dist.get_world_size() - 1)
    return shared.item()
