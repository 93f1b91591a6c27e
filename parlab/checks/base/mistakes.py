"""Named mistakes that a check can find, each under a key that never changes.

    MISTAKES = Mistakes(
        sum_for_mean="the gradients are summed, not averaged: the step is {times} times too long",
    )
    return MISTAKES.sum_for_mean(times=4)

The key appears in the check's message, in the wrong answers (`tests/answers`), and in the
instructor's summary. A text says what happened and then what to do. If a check is not sure which
mistake was made, it shows what it saw: `observed(text)`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """What is wrong, in words. `mistake` is its key, or None if only the evidence is known."""

    text: str
    mistake: str | None = None


def observed(text: str) -> Finding:
    """Return a finding with only the evidence, for wrong results whose mistake is not certain."""
    return Finding(text)


class Mistakes:
    """The mistakes that one check can name: `mistakes.key(**values)` returns the finding."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def __getattr__(self, key: str) -> Callable[..., Finding]:
        try:
            text = self.__dict__["texts"][key]
        except KeyError:
            raise AttributeError(f"no mistake {key!r} is defined here") from None
        return lambda **values: Finding(text.format(**values), key)


def the_only(mistakes: Mistakes, keys: Iterable[str], **values: Any) -> Finding | None:
    """Return the finding of the only mistake in `keys`, or None: to choose one would be a guess."""
    distinct = set(keys)
    return getattr(mistakes, distinct.pop())(**values) if len(distinct) == 1 else None


# The mistakes that are possible in any exercise. The modules of checks define the others.
COMMON = Mistakes(
    raises="{error}",
    does_not_end="the function does not end, or takes too long, so the check stopped it",
    lab_communicator=(
        "the function uses a communicator that is null, freed, or disabled, such as the lab's "
        "`comm` (or COMM_WORLD) during a check. Use the function's own arguments instead"
    ),
    default_group=(
        "the function uses torch.distributed's default group (as `group=None` does), which is "
        "disabled during a check. Pass a group that the function gets, such as `group=group`"
    ),
    no_memory="{error}. First call `storage.resize_`, which takes a number of bytes",
    freed_before_wait="{error}. Call `wait()` on its handle before you use or free the tensor",
    changed_before_wait=(
        "the numbers of an `isend` change before the wait for it, so the receiver may get old or "
        "new numbers. Wait first"
    ),
    not_contiguous=(
        "{error}: Gloo and NCCL need contiguous tensors. Send `tensor.contiguous()`, and receive "
        "into a contiguous tensor"
    ),
    nothing_sent=(
        "nothing was sent through the communicator or group that was passed to the function, so "
        "other ranks cannot know this rank's data"
    ),
    pickles=(
        "rank {rank} calls `comm.{name}`, which pickles a Python object. Use `comm.{right}`, which "
        "sends the array's own memory"
    ),
    library=(
        "the function calls the collective `comm.{name}`. Use only messages between two ranks "
        "(Send, Recv, Sendrecv)"
    ),
    formula_called=(
        "the function uses `{name}`, which has the formula. Work it out yourself, and compute the "
        "numbers from the function's arguments"
    ),
    needless_barrier=(
        "the function calls `comm.{name}`, a collective without data. A receive already waits for "
        "its message, and a barrier costs another ⌈log₂ N⌉ rounds"
    ),
    no_wait=(
        "rank {rank} never waits for the request of its `{name}`. The message may not have been "
        "sent or received until a wait for it returns"
    ),
    unreadable=(
        "the check cannot read what the function returned or changed. Compare its form with what "
        "the exercise asks for. The error was {error}"
    ),
    returns_none="it returns None: is a `return` missing?",
    returns_something="it returns {got}, but the exercise asks only for {instead}",
    not_refused="it accepts {what}: raise a ValueError{naming}",
    wrong_type="{name} is {got}, expected {right}",
    wrong_shape="{name} has shape {got}, expected {right}",
    wrong_dtype="{name} has dtype {got}, expected {right}",
    not_a_number="{name} is {got}, expected {right}",
    argument_changed="the function changes {name}, which belongs to the caller. Work on a copy",
    global_generator=(
        "the function uses or seeds {library}'s global generator, on which other code "
        "depends. Use your own generator"
    ),
)
