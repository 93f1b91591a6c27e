"""The actions of a pipeline's ranks."""

from typing import NamedTuple


class Action(NamedTuple):
    """The forward or the backward pass of one micro-batch through one stage.

    `kind` is "forward" or "backward". Stages are numbered from 0 to p·v − 1 along the model, and
    stage s is on rank s % p. Micro-batches are numbered from 0.
    """

    kind: str
    stage: int
    micro_batch: int


Schedule = list[list[Action]]
"""The actions of each rank, in the order in which it runs them."""


def forward(stage: int, micro_batch: int) -> Action:
    """Return the forward pass of a micro-batch through a stage."""
    return Action("forward", stage, micro_batch)


def backward(stage: int, micro_batch: int) -> Action:
    """Return the backward pass of a micro-batch through a stage."""
    return Action("backward", stage, micro_batch)


def text(action: Action, ranks: int | None = None) -> str:
    """Return a short text for an action: "F0", "B3", or, with its stage, "F0@5".

    The stage is named if `ranks` is None, or if a rank has several stages.
    """
    short = f"{action.kind[:1].upper()}{action.micro_batch}"
    return short if ranks is not None and action.stage < ranks else f"{short}@{action.stage}"


def texts(actions: list[Action], ranks: int | None = None) -> str:
    """Return a short text for a rank's actions, in order: "F0 F1 B0 B1"."""
    several = ranks is None or any(action.stage >= ranks for action in actions)
    return " ".join(text(action, None if several else ranks) for action in actions)
