"""Pipelines whose stages take a set time, for an emulated network.

share = timed_share(rank, ranks=4, stages_per_rank=1, forward=30e-3, backward=60e-3)
spans = fastest_spans(pipeline, timeline, micro_batches=8, group=group)
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab.network import Stage
from parlab.pipeline.stages import Share, share_of
from parlab.timeline import Span, Timeline

WIDTH = 8  # of the layers, which hardly compute anything


def timed_share(
    rank: int, ranks: int, stages_per_rank: int, forward: float, backward: float
) -> Share:
    """This rank's stages of a model on `ranks` ranks, with so many seconds for each pass.

    A rank that does not take part gets a share too, which it does not use.
    """
    stages = [nn.Linear(WIDTH, WIDTH) for _ in range(ranks * stages_per_rank)]
    share = share_of(stages, torch.zeros(1, WIDTH), rank % ranks, ranks)
    for number, stage in share.own.items():
        share.own[number] = Stage(stage, forward, backward)
    return share


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error."""
    return (outputs - targets).square().mean()


def fastest_spans(
    pipeline: object, timeline: Timeline, samples: int, group: dist.ProcessGroup, rounds: int = 3
) -> list[Span]:
    """The spans of the fastest of some steps: a busy machine makes a step slower, never faster.

    Args:
        pipeline: has `step(inputs, targets)`; its stages are recorded on `timeline`.
        timeline: of the ranks of `group`.
        samples: in a batch.
        group: the ranks of the pipeline.
        rounds: how many steps are recorded.
    """
    inputs, targets = torch.ones(samples, WIDTH), torch.zeros(samples, WIDTH)
    runs = []
    for _ in range(rounds):
        timeline.clear()
        dist.barrier(group=group)
        pipeline.step(inputs, targets)  # type: ignore[attr-defined]
        runs.append(timeline.gather())
    return min(runs, key=lambda spans: max(span.end for span in spans))
