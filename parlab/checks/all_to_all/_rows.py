"""Rows that are sent, and requirements on the messages of a pairwise exchange."""

from random import Random
from typing import Any

import numpy as np

from parlab.checks.base.messages import rounds_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial

EXCHANGE = {
    "message_to_itself": (
        "rank {rank} sends a message to itself. Copy its own rows, because they are already there"
    ),
    "one_after_the_other": (
        "the messages take {got} rounds, expected {right}. In each step, let every rank send and "
        "receive at the same time"
    ),
    "shares_memory": "{name} is an argument, or a view of one. Return a new array",
}


def random_rows(draw: Random, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draw an array of `shape` with numbers from 1 to 999, the same on all ranks."""
    generator = np.random.default_rng(draw.getrandbits(32))
    return np.array(generator.integers(1, 1000, shape), dtype)


def none_to_itself(mistakes: Mistakes, trial: Trial) -> Finding | None:
    for rank in range(trial.size):
        if any(call.to == rank for call in trial.sends(rank)):
            return mistakes.message_to_itself(rank=rank)
    return None


def sent_at_once(mistakes: Mistakes, trial: Trial, right: int) -> Finding | None:
    rounds = rounds_of(trial)
    late = rounds is not None and rounds > right
    return mistakes.one_after_the_other(got=rounds, right=right) if late else None


def new_array(mistakes: Mistakes, got: Any, argument: np.ndarray, name: str) -> Finding | None:
    is_shared = got is argument or np.shares_memory(got, argument)  # an empty array shares none
    return mistakes.shares_memory(name=name) if is_shared else None
