"""Pipelines: schedules of actions on ranks, and their times, bubbles, and activations.

A schedule is a list of actions for each rank. `simulate` runs it, with one duration for forward
passes and one for backward passes:

    from parlab.pipeline import backward, bubble, forward, live, simulate

    spans = simulate([[forward(0, 0), backward(0, 0)], [forward(1, 0), backward(1, 0)]])
    bubble(spans)    # 1.0: as much idle time as work
    live(spans)      # [1.0, 1.0] micro-batches held at most, on each rank

actions   the actions and their short text
complete  verifies that a schedule has every action once
simulate  times, deadlocks, the bubble, and the activations held

These modules need torch and must be imported separately:

stages    a rank's stages of a model
recorded  records the spans of a run for a picture
timed     stages that take a set time
"""

from parlab.pipeline.actions import Action, Schedule, backward, forward, text, texts
from parlab.pipeline.complete import Incomplete, sizes
from parlab.pipeline.simulate import Deadlock, Span, Wait, bubble, live, needs, simulate

__all__ = [
    "Action",
    "Deadlock",
    "Incomplete",
    "Schedule",
    "Span",
    "Wait",
    "backward",
    "bubble",
    "forward",
    "live",
    "needs",
    "simulate",
    "sizes",
    "text",
    "texts",
]
