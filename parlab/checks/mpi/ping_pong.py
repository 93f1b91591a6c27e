"""Exercise `ping_pong`."""

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close
from parlab.checks.base.messages import no_pickles, of_bytes, only_messages
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.verdict import CheckFailed
from parlab.checks.mpi._comms import delayed
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS

# Seconds that rank 1 waits in each round trip, by the number of trips. The median differs from the
# first, the last, the mean, and the other median by more than a busy machine can add.
DELAYS = {5: [0.008, 0.3, 0.02, 0.09, 0.008], 4: [0.5, 0.02, 0.2, 0.008]}
# The share by which a result may be above the median, because a busy machine adds time, or below
# it. BELOW_UNSEEN applies to `Waitall`, where the ledger does not see when a message arrives.
ABOVE, BELOW, BELOW_UNSEEN = 0.4, 0.05, 0.25
PART = 0.3  # below this share of the right time, the clock did not run during the whole trip
# A busy machine may pause rank 0 after the function reads the clock and before it sends. A wrong
# function fails in every attempt.
ATTEMPTS = 3

MISTAKES = Mistakes(
    others_play="rank {rank} sends or receives. Only ranks 0 and 1 play",
    overlapping=(
        "rank {rank} sends before the message that it should wait for has arrived. Send the next "
        "message only after the last one has arrived, so that each round trip is measured alone"
    ),
    returned_elsewhere="it returns {got}. All ranks but rank 0 return None",
    part_of_the_trip=(
        "it returns {got:.2g} s, but half of the median round trip is {right:.2g} s. A round trip "
        "lasts from before rank 0 sends until the answer has arrived. Take the median of all trips"
    ),
    round_trip="it returns the time of a round trip. Return half of it, the time of one message",
    mean=(
        "it returns the mean, to which one late answer contributes as much as all others. Return "
        "the median"
    ),
)


# The number of repeats, and what rank 1 does late.
PLAYS = [(5, "sends"), (4, "receives")]


@check_of(MISTAKES)
def ping_pong(check: Check) -> str:
    """Check the messages, their order, and the result for round trips of known durations."""
    if check.world_size < 2:
        check.fail(observed("a ping-pong needs two ranks. Start two ranks or more"))
    for number, trial in enumerate(check.trials(smallest=2, unbuffered=True, pauses=False)):
        # Try both first, so that a function fails if it returns a time from an earlier call.
        tried = PLAYS if number == 0 else [PLAYS[number % 2]]
        cases = {f"{n} repeats, rank 1 {late} late": (n, late) for n, late in tried}
        for _, (repeats, late) in trial.cases(cases, again=False):
            play(trial, repeats, late)
    return (
        "two ranks play, the others do not; as many bytes each way as asked for, one message "
        "after the other; the median of the round trips, halved"
    )


def play(trial: Trial, repeats: int, late: str) -> None:
    size = trial.draw.randrange(1, 5000)
    attempts_left = ATTEMPTS
    while attempts_left:
        attempts_left -= 1
        seconds = played(trial, size, repeats, late)
        try:
            trial.require(lambda got=seconds: right_time(got, trial))
        except CheckFailed:
            if not attempts_left:
                raise
        else:
            break


def played(trial: Trial, size: int, repeats: int, late: str) -> Any:
    """Run the function, check its messages, and return its result."""
    if trial.rank == 1:
        delays = {late: DELAYS[repeats]}
        trial.comm = delayed(trial.comm._watched, trial.ledger, **delays)
    seconds = trial.run(size, repeats, trial.comm)
    trial.require(
        lambda: only_two_play(trial),
        lambda: only_messages(trial),
        lambda: no_pickles(trial),
        lambda: as_many_and_as_long(trial, size, repeats),
        lambda: one_after_the_other(trial),
        lambda: returned_by_rank_0(trial.rank, seconds),
    )
    return seconds


def only_two_play(trial: Trial) -> Finding | None:
    for rank in range(2, trial.size):
        if trial.sends(rank) or trial.receives(rank):
            return MISTAKES.others_play(rank=rank)
    return None


def as_many_and_as_long(trial: Trial, size: int, repeats: int) -> Finding | None:
    for rank in (0, 1):
        got = [call.bytes_sent for call in trial.sends(rank)]
        if got != [size] * repeats:
            return observed(
                f"rank {rank} sends {of_bytes(got)}, expected repeats={repeats} messages of "
                f"size={size} bytes"
            )
    return None


def one_after_the_other(trial: Trial) -> Finding | None:
    """Require that a rank sends only after the previous message has arrived."""
    for rank, following in ((1, trial.sends(1)), (0, trial.sends(0)[1:])):
        for arrived, call in zip(trial.receives(rank), following, strict=False):
            if call.start < arrived.end:
                return MISTAKES.overlapping(rank=rank)
    return None


def returned_by_rank_0(rank: int, seconds: Any) -> Finding | None:
    if rank == 0 or seconds is None:
        return None
    return MISTAKES.returned_elsewhere(got=repr(seconds))


def right_time(seconds: Any, trial: Trial) -> Finding | None:
    """Compare with half the median, and with what mistakes compute from the same calls."""
    if trial.rank:
        return None
    if seconds is None:
        return COMMON.returns_none()
    if not hasattr(seconds, "__float__"):
        return COMMON.wrong_type(name="the result", got=repr(seconds), right="a number of seconds")
    calls = trial.calls[0]
    got, trips = float(seconds), round_trips(calls)
    right = median(trips) / 2
    if close(got, right, BELOW):
        return None
    if 0 < got < PART * right:
        return MISTAKES.part_of_the_trip(got=got, right=right)
    for mistake, values in {
        "round_trip": [2 * right],
        "mean": [mean(trips), mean(trips) / 2],
    }.items():
        if any(close(got, value, BELOW) for value in values):
            return getattr(MISTAKES, mistake)()
    observed_ends = all(call.end_seen for call in calls if call.op in RECEIVES)
    if is_about(got, right, BELOW if observed_ends else BELOW_UNSEEN):
        return None
    return observed(f"it returns {got:.2g} s, but half of the median round trip is {right:.2g} s")


def round_trips(calls: Sequence[Call]) -> list[float]:
    """Return the seconds from the start of each send until the answer arrived, on rank 0."""
    sends = [call for call in calls if call.op in SENDS]
    answers = [call for call in calls if call.op in RECEIVES]
    return [answer.end - send.start for send, answer in zip(sends, answers, strict=False)]


def is_median(seconds: Any, calls: Sequence[Call]) -> bool:
    """Return whether `seconds` is about half the median of the round trips in rank 0's `calls`."""
    return is_about(seconds, median(round_trips(calls)) / 2)


def is_about(seconds: float, right: float, below: float = BELOW) -> bool:
    """Return whether `seconds` is close to `right`, or above it by what a busy machine adds."""
    return (1 - below) * right <= seconds <= (1 + ABOVE) * right
