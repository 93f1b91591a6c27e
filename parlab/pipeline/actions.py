"""What a rank of a pipeline does, one action after the other."""

from typing import NamedTuple


class Action(NamedTuple):
    """The forward or the backward pass of one micro-batch through one stage.

    kind: "forward" or "backward". Stages are numbered from 0 to p·v − 1 along the model; stage s
    is on rank s % p. Micro-batches are numbered from 0.
    """

    kind: str
    stage: int
    micro_batch: int


Schedule = list[list[Action]]
"""For each rank its actions, in the order in which it does them."""


def forward(stage: int, micro_batch: int) -> Action:
    """The forward pass of a micro-batch through a stage."""
    return Action("forward", stage, micro_batch)


def backward(stage: int, micro_batch: int) -> Action:
    """The backward pass of a micro-batch through a stage."""
    return Action("backward", stage, micro_batch)


def text(action: Action, ranks: int | None = None) -> str:
    """An action in short: "F0", "B3"; "F0@5" names the stage, where a rank of `ranks` has several.

    Without `ranks` the stage is always named.
    """
    short = f"{action.kind[:1].upper()}{action.micro_batch}"
    return short if ranks is not None and action.stage < ranks else f"{short}@{action.stage}"


def texts(actions: list[Action], ranks: int | None = None) -> str:
    """A rank's actions in short, in order: "F0 F1 B0 B1"."""
    several = ranks is None or any(action.stage >= ranks for action in actions)
    return " ".join(text(action, None if several else ranks) for action in actions)
