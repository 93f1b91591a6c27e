"""Requirements on messages: who sends what to whom, how, and in how many rounds.

Each function examines a trial's `calls`, which every rank knows, and returns a `Finding` or None.
"""

from parlab.checks.base.mistakes import COMMON, Finding
from parlab.checks.base.rounds import Step, rounds
from parlab.checks.base.trial import Trial
from parlab.checks.base.unbuffered import written
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS


def only_messages(trial: Trial) -> Finding | None:
    """Require that no library collective is called, since the exercise builds its own."""
    for calls in trial.calls:
        for call in calls:
            if call.op == "barrier":
                return COMMON.needless_barrier(name=call.api)
            if call.op not in (*SENDS, *RECEIVES):
                return COMMON.library(name=call.api)
    return None


def no_pickles(trial: Trial) -> Finding | None:
    """Require that no Python objects are sent, because pickling copies every byte."""
    for rank, calls in enumerate(trial.calls):
        for call in calls:
            name = written(call)
            pickles = name[0].islower() and call.op != "barrier"
            if pickles and not call.api.startswith("c10d."):
                return COMMON.pickles(rank=rank, name=name, right=name.capitalize())
    return None


def of_bytes(sizes: list[int]) -> str:
    """Describe messages of these sizes: `messages of [8, 8] bytes`."""
    return f"messages of {sizes} bytes" if sizes else "no messages"


def something_sent(trial: Trial) -> Finding | None:
    """Require a call on the communicator that the function got, if there are several ranks."""
    if trial.size > 1 and not any(trial.calls):
        return COMMON.nothing_sent()
    return None


def contiguous(trial: Trial) -> Finding | None:
    """Require contiguous tensors in all of the group's calls since the last `take_events()`."""
    if all(event.contiguous for event in trial.group.take_events()):
        return None
    return COMMON.not_contiguous(error="a tensor of a collective is not contiguous")


def rounds_of(trial: Trial) -> int | None:
    """Return how many rounds the trial's messages take on an ideal network (see `base.rounds`)."""
    return rounds([[step(call) for call in calls] for calls in trial.calls])


def step(call: Call) -> Step:
    """Return a call in the form that `rounds` takes."""
    return Step(call.to, call.source, blocking=call.op in ("send", "recv", "sendrecv"))
