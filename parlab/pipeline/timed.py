"""Pipelines whose stages take a set time, for an emulated network.

share = timed_share(rank, ranks=4, stages_per_rank=1, forward=30e-3, backward=60e-3)
spans = fastest_spans(pipeline, timeline, samples=8, group=group)
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab import timing
from parlab.network import Stage
from parlab.pipeline.stages import Share, share_of
from parlab.timeline import Span, Timeline

WIDTH = 8  # of the layers, which compute very little


def timed_share(
    rank: int, ranks: int, stages_per_rank: int, forward: float, backward: float
) -> Share:
    """Return this rank's stages of a model on `ranks` ranks, with these seconds for each pass.

    A rank that does not take part also gets a share, which it does not use.
    """
    stages = [nn.Linear(WIDTH, WIDTH) for _ in range(ranks * stages_per_rank)]
    share = share_of(stages, torch.zeros(1, WIDTH), rank % ranks, ranks)
    for number, stage in share.own.items():
        share.own[number] = Stage(stage, forward, backward)
    return share


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error."""
    return (outputs - targets).square().mean()


def fastest_spans(
    pipeline: object, timeline: Timeline, samples: int, group: dist.ProcessGroup, rounds: int = 3
) -> list[Span]:
    """Return the spans of the fastest of several steps, because a busy machine slows some down.

    Args:
        pipeline: has `step(inputs, targets)`. Its stages are recorded on `timeline`.
        timeline: the timeline of the ranks in `group`.
        samples: the number of samples in a batch.
        group: the ranks of the pipeline.
        rounds: the number of steps to record.
    """
    inputs, targets = torch.ones(samples, WIDTH), torch.zeros(samples, WIDTH)
    runs = []
    for _ in range(timing.at_most(rounds)):
        timeline.clear()
        dist.barrier(group=group)
        pipeline.step(inputs, targets)  # type: ignore[attr-defined]
        runs.append(timeline.gather())
    return min(runs, key=lambda spans: max(span.end for span in spans))
