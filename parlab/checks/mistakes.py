"""Named mistakes: what a check has found, under a key that stays the same.

    MISTAKES = Mistakes(
        sum_for_mean="the gradients are summed, not averaged: the step is {times} times too long",
    )
    return MISTAKES.sum_for_mean(times=4)

The key stands in the check's message, in the wrong answers (`tests/answers`), and in the
instructor's summary. A text says what the learner has understood wrongly, and what to look at.
Where a check is not sure of the mistake, it shows what it saw and does not guess: `evidence`.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What is wrong, in words; `mistake` is its key, None where only the evidence is known."""

    text: str
    mistake: str | None = None


def evidence(text: str) -> Finding:
    """What was seen, where it is not certain which mistake leads to it."""
    return Finding(text)


class Mistakes:
    """The mistakes that one check can name: `mistakes.key(**values)` is the finding."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def __getattr__(self, key: str) -> Callable[..., Finding]:
        try:
            text = self.__dict__["texts"][key]
        except KeyError:
            raise AttributeError(f"no mistake {key!r} is defined here") from None
        return lambda **values: Finding(text.format(**values), key)


# What any exercise's function may do. A chapter's own are in the modules of its checks.
COMMON = Mistakes(
    raises="{error}",
    does_not_end="does not end; stopped while waiting",
    lab_communicator=(
        "it speaks over the lab's own `comm` (or COMM_WORLD, which is the same): a function that "
        "is given a communicator speaks on that one alone. The lab's refuses while a check runs"
    ),
    default_group=(
        "it speaks over torch.distributed's default group: pass `group=` with the group that the "
        "function was given. The default group refuses while a check runs"
    ),
    no_memory=(
        "{error}. Its memory was given up: `storage.resize_` gives it back before the call, and "
        "counts bytes"
    ),
    freed_before_wait="{error}: `wait()` on its handle comes before the numbers are used",
    changed_before_wait=(
        "the tensor of an `isend` changes before the `wait()` on its handle: until then its "
        "numbers may be read, and the receiver gets old ones or new ones. Wait first"
    ),
    not_contiguous=(
        "{error}: Gloo and NCCL send and receive contiguous memory alone, and refuse views of "
        "other strides. `tensor.contiguous()` is the tensor itself, or a copy where it has to be"
    ),
    nothing_sent=(
        "nothing went through the communicator or group that the function was given: other ranks "
        "cannot know of this one's data"
    ),
    pickles=(
        "rank {rank} calls `comm.{name}`: in lower case it pickles a Python object; "
        "`comm.{right}` sends the array's own memory"
    ),
    library=(
        "it calls `comm.{name}`, which does what you are to build: use messages from one rank to "
        "another (Send, Recv, Sendrecv)"
    ),
    needless_barrier=(
        "it calls `comm.{name}`, a collective that carries no data: what waits for a message "
        "needs no barrier, and it costs ⌈log₂ N⌉ rounds of its own"
    ),
    no_wait=(
        "rank {rank} never waits for the request of its `{name}`: until `Wait` returns, the "
        "message may not have left or arrived"
    ),
    unreadable=(
        "what the function returned or left behind has a form that the check cannot read: compare "
        "it with what the exercise asks for. Reading it gave {error}"
    ),
    returns_none="it returns None: is a `return` missing?",
    returns_something="it returns {got}: nothing is asked for but {instead}",
    wrong_type="{name} is {got} where {right} is right",
    wrong_shape="{name} has shape {got} where {right} is right",
    wrong_dtype="{name} has dtype {got} where {right} is right",
    not_a_number="{name} at index {index} is {got} where {right} is right",
    argument_changed="{name} has changed, which belongs to the caller: work on a copy",
    global_generator=(
        "it draws from {library}'s global generator, or seeds it. Dropout and initialisation "
        "depend on that one: use a generator of your own"
    ),
)
