"""Exercise `ping_pong`."""

from collections.abc import Sequence
from random import Random
from statistics import median, median_high, median_low
from typing import Any

from parlab.checks.check import Check, check_of
from parlab.checks.compare import close
from parlab.checks.messages import no_pickles
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.mpi.late_answers import late_answers
from parlab.checks.trial import Trial
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS

# Seconds that rank 1 takes for an answer, as many fast ones as slow ones, and one or two in the
# middle: the median is far from every other trip, and from every mean, by a factor that a busy
# machine does not bring about.
FAST, SLOW, SLOWEST = 0.008, 0.09, 0.2
MIDDLE = {"odd": [0.02], "even": [0.02, 0.07]}
# How far above the truth a result may be, and how near another quantity's value it has to be to be
# called that. A busy machine delays what lies between the clock and the message: that adds to what
# the clock says, and takes nothing away. But of answers that are waited for out of the ledger's
# sight it may note the end so much later than the function does.
MOST, NEAR, UNSEEN = 0.4, 0.05, 0.25

MISTAKES = Mistakes(
    others_play="rank {rank} sends or receives: only ranks 0 and 1 play",
    no_answer="rank 1 sends nothing back: a ping without a pong has no round trip to measure",
    other_count=(
        "rank {rank} sends {got} messages where repeats={right} are right: each repeat is one "
        "message there and one back"
    ),
    other_bytes=(
        "rank {rank} sends {got} bytes where size={right} bytes are right, there and back (the "
        "buffer's dtype decides how many bytes an element has)"
    ),
    collective=(
        "it calls `comm.{name}`, in which all ranks take part: a ping-pong is messages between "
        "ranks 0 and 1, and the others do nothing"
    ),
    answers_too_early=(
        "rank 1 sends before it has received: the two messages cross, and the time from sending "
        "to receiving is not that of two messages one after the other"
    ),
    next_too_early=(
        "rank 0 sends the next message before the answer to the last has arrived: the round trips "
        "overlap, so that none of them is measured by itself"
    ),
    returned_elsewhere="rank {rank} returns {got}: all ranks but rank 0 return None",
    just_the_send=(
        "it returns {got:.2g} s where a message took {right:.2g} s: about as long as rank 0's "
        "sending alone. The clock has to run from before rank 0 sends until the answer has arrived"
    ),
    round_trip="it returns the time of a whole round trip: one message takes half of it",
    all_together="it returns the time of all repeats together: return that of one message",
    mean=(
        "it returns the mean: one answer came late here, as happens on any machine, and it counts "
        "as much as all others; take the median of the round trips"
    ),
    one_trip_alone=("it returns the time of one round trip alone, {which}: take the median of all"),
    one_of_two=(
        "of an even number of round trips it returns {which} of the two in the middle: the median "
        "of them all is the mean of the two, as statistics.median has it"
    ),
    other_unit="it returns {got:.2g} where {right:.2g} s is right: {unit}, not seconds",
)


@check_of(MISTAKES)
def ping_pong(check: Check) -> str:
    """Check messages, their order, bytes and the time of a ping-pong with known answer times."""
    if check.world_size < 2:
        check.fail(evidence("it takes two to play: start two ranks or more"))
    for number, trial in enumerate(check.trials(smallest=2, unbuffered=True)):
        size = trial.draw.randrange(1, 5000)
        repeats = trial.draw.choice((4, 6) if number % 2 else (5, 7))
        trial.add(f"{repeats} repeats")
        delays = drawn_delays(trial.draw, repeats)
        if trial.comm is not None and trial.rank == 1:
            trial.comm = late_answers(trial.comm._watched, trial.ledger, delays)
        seconds = trial.run(size, repeats, trial.comm)
        trial.require(
            lambda: only_two_play(trial),
            lambda: no_collective(trial),
            lambda: no_pickles(trial),
            lambda: messages(trial, size, repeats),
            lambda: one_after_the_other(trial),
            lambda: returned_by_rank_0_alone(trial.rank, seconds),
            lambda: right_time(seconds, trial.calls[0]) if trial.rank == 0 else None,
        )
    return (
        "two ranks play, the others do not; as many bytes each way as asked for, one message "
        "after the other; the median of the round trips, halved"
    )


def drawn_delays(draw: Random, repeats: int) -> list[float]:
    """Seconds before each answer; those in the middle of their order are neither first nor last."""
    below = [FAST] * ((repeats - 1) // 2)
    others = [*below, SLOWEST, *[SLOW] * (len(below) - 1)]
    draw.shuffle(others)
    middle = [*MIDDLE["odd" if repeats % 2 else "even"], *others[2:]]
    draw.shuffle(middle)
    return [others[0], *middle, others[1]]


def only_two_play(trial: Trial) -> Finding | None:
    for rank in range(2, trial.size):
        if any(call.op in (*SENDS, *RECEIVES) for call in trial.calls[rank]):
            return MISTAKES.others_play(rank=rank)
    return None


def no_collective(trial: Trial) -> Finding | None:
    for calls in trial.calls:
        for call in calls:
            if call.op not in (*SENDS, *RECEIVES):
                return MISTAKES.collective(name=call.api)
    return None


def messages(trial: Trial, size: int, repeats: int) -> Finding | None:
    if trial.sends(0) and not trial.sends(1):
        return MISTAKES.no_answer()
    for rank in (0, 1):
        for call in trial.sends(rank):
            if call.bytes_sent != size:
                return MISTAKES.other_bytes(rank=rank, got=call.bytes_sent, right=size)
        if (count := len(trial.sends(rank))) != repeats:
            return MISTAKES.other_count(rank=rank, got=count, right=repeats)
    return None


def one_after_the_other(trial: Trial) -> Finding | None:
    """Each message starts after the one before it has arrived, as each rank's own clock says."""
    for came, answer in zip(trial.receives(1), trial.sends(1), strict=False):
        if answer.start < came.end:
            return MISTAKES.answers_too_early()
    for came, following in zip(trial.receives(0), trial.sends(0)[1:], strict=False):
        if following.start < came.end:
            return MISTAKES.next_too_early()
    return None


def returned_by_rank_0_alone(rank: int, seconds: Any) -> Finding | None:
    if rank == 0 or seconds is None:
        return None
    return MISTAKES.returned_elsewhere(rank=rank, got=repr(seconds))


def right_time(seconds: Any, calls: Sequence[Call]) -> Finding | None:
    """Compare with the time from before each send until the answer was there, on rank 0."""
    if seconds is None:
        return COMMON.returns_none()
    if not hasattr(seconds, "__float__"):
        return COMMON.wrong_type(name="the result", got=repr(seconds), right="the seconds")
    got = float(seconds)
    sends, trips = [call for call in calls if call.op in SENDS], round_trips(calls)
    if not trips:
        return None if 0 < got < SLOW else evidence(f"it returns {got:.2g} s for a message")
    right = median(trips) / 2
    if close(got, right, NEAR):
        return None
    return (
        other_quantity(got, right, trips, [here.end - here.start for here in sends])
        or other_unit(got, right)
        or (None if about(got, right, _less(calls)) else of_no_trip(got, right))
    )


def round_trips(calls: Sequence[Call]) -> list[float]:
    """Seconds from the start of each send until the answer was there; none where none was seen."""
    sends = [call for call in calls if call.op in SENDS]
    answers = [call for call in calls if call.op in RECEIVES]
    pairs = zip(sends, answers, strict=False)
    return [there.end - here.start for here, there in pairs if there.end is not None]


def is_median(seconds: Any, calls: Sequence[Call]) -> bool:
    """Whether `seconds` is half the median of the round trips in rank 0's `calls`, by and large."""
    return about(seconds, median(round_trips(calls)) / 2)


def _less(calls: Sequence[Call]) -> float:
    """How far below what the ledger has of these calls a result may be."""
    seen = all(call.end_seen for call in calls if call.op in RECEIVES)
    return NEAR if seen else UNSEEN


def about(seconds: float, right: float, less: float = NEAR) -> bool:
    """Whether it is `right`, or longer by what a busy machine may add; or a little `less`."""
    return (1 - less) * right <= seconds <= (1 + MOST) * right


def other_quantity(
    got: float, right: float, trips: list[float], sending: list[float]
) -> Finding | None:
    """What else of these messages the result is the time of."""
    two = {"the lower": median_low(trips), "the upper": median_high(trips)}
    for which, trip in two.items() if len(trips) % 2 == 0 else ():
        if close(got, trip / 2, NEAR):
            return MISTAKES.one_of_two(which=which)
    if any(close(got, total, NEAR) for total in (sum(trips), sum(trips) / 2)):
        return MISTAKES.all_together()
    if close(got, 2 * right, NEAR):
        return MISTAKES.round_trip()
    mean = sum(trips) / len(trips)
    if close(got, mean, NEAR) or close(got, mean / 2, NEAR):
        return MISTAKES.mean()
    single = {"the quickest": min(trips), "the slowest": max(trips)}
    single |= {"the first": trips[0], "the last": trips[-1]}
    for which, trip in single.items():
        if close(got, trip / 2, MOST / 2) and not close(trip / 2, right, MOST):
            return MISTAKES.one_trip_alone(which=which)
    # Its clock also runs while the call is entered in the ledger, and a busy machine takes its time
    # over a send, too; less than half of `right` it stays.
    if got < 0.45 * right and 0.3 * min(sending) <= got <= max(sending) + 0.001:
        return MISTAKES.just_the_send(got=got, right=right)
    return None


def other_unit(got: float, right: float) -> Finding | None:
    for unit, factor in {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}.items():
        for times in (1, 2):
            if close(got, times * factor * right, MOST / 2):
                return MISTAKES.other_unit(got=got, right=right, unit=unit)
    return None


def of_no_trip(got: float, right: float) -> Finding:
    return evidence(
        f"it returns {got:.2g} s where the median of the round trips, halved, is {right:.2g} s"
    )
