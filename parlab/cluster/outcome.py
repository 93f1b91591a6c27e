"""Describes how a rank cell ended."""

from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """The reason why the kernel stopped waiting for a cell."""

    FINISHED = "finished"
    FAILED = "a rank failed and left others waiting"
    DEADLINE = "the deadline passed"
    DIED = "a rank died"
    CUT_OFF = "ipyparallel's controller ended"
    INTERRUPTED = "the user stopped the cell"


@dataclass
class Outcome:
    """The result of a rank cell, and the state of its ranks."""

    ending: Ending
    # The line of each rank that was still running when the kernel stopped waiting.
    stuck: dict[int, str] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    # Ranks that were running when another failed, and then finished the cell by themselves.
    finished: list[int] = field(default_factory=list)
    freed: bool = False  # True if ranks were made to stop
    intact: bool = True  # False: the ranks must be replaced
    # The line of each rank that was running a `--noblock` cell, which was stopped as well.
    background: dict[int, str] = field(default_factory=dict)
    not_free: list[int] = field(default_factory=list)  # ranks that did not stop
    # By rank, the modules whose import was interrupted. These ranks must be replaced.
    interrupted_imports: dict[int, list[str]] = field(default_factory=dict)
    continued: list[int] = field(default_factory=list)  # ranks that a signal had stopped
    lost: list[str] = field(default_factory=list)  # variables with communicators that were revoked
    torch_is_new: bool = False
    old: list[str] = field(default_factory=list)  # variables that use torch's earlier groups
