"""Exercises `ping_pong`, `fit_alpha_beta` and `ring_shift`."""

import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.base import Check, difference, fresh_seed, random_numbers
from parlab.checks.mpi.rounds import rounds
from parlab.checks.mpi.trial import Trial, trial, worlds
from parlab.ledger import Call

# Far longer than what a busy machine adds to a message.
ANSWER_SECONDS = 0.02
SLOW_ANSWER_SECONDS = 0.3
# How much later two of the messages came whose times are fitted.
LATE = 1.2

PingPong = Callable[[int, int, MPI.Intracomm], float | None]
Fit = Callable[[Sequence[int], Sequence[float]], tuple[float, float]]
Shift = Callable[[np.ndarray, MPI.Intracomm], np.ndarray]


# ping_pong


def ping_pong(function: PingPong) -> None:
    """Check messages, bytes and the time of a ping-pong in which rank 1 answers slowly."""
    check = Check("ping_pong")
    if check.world_size < 2:
        check.fail("it takes two to play: start two ranks or more")
    draw = Random(fresh_seed())
    for ranks in worlds(check, draw, smallest=2):
        size, repeats = draw.randrange(1, 5000), draw.randrange(5, 9)
        with trial(check, function, ranks) as played:
            if played.rank == 1:
                _answer_slowly(played, draw.randrange(repeats))
            else:
                draw.randrange(repeats)  # ranks draw alike
            seconds = played.run(size, repeats)
            _only_two_play(played)
            played.no_pickles()
            _messages(played, size, repeats)
            problem = _time(seconds, played.calls[0]) if played.rank == 0 else None
            played.agree(problem)
    check.passed(
        "two ranks play, the others do not; as many bytes each way as asked for; the median of "
        "the round trips, halved"
    )


def _answer_slowly(played: Trial, exception: int) -> None:
    """Make rank 1 sleep before each message, so that half a round trip has a known length.

    One answer is far slower than the others: a mean tells of it, a median does not.
    """
    assert played.watched is not None
    answers = iter(range(10**9))

    def slow(send: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **options: Any) -> Any:
            late = next(answers) == exception
            time.sleep(SLOW_ANSWER_SECONDS if late else ANSWER_SECONDS)
            return send(*arguments, **options)

        return answer

    for name in ("Send", "send", "Ssend", "Isend", "isend", "Sendrecv", "sendrecv"):
        setattr(played.watched, name, slow(getattr(played.watched, name)))


def _only_two_play(played: Trial) -> None:
    for rank in range(2, played.size):
        if played.calls[rank]:
            played.fail(f"rank {rank} sends or receives: only ranks 0 and 1 play")


def _messages(played: Trial, size: int, repeats: int) -> None:
    for rank in (0, 1):
        sends = played.sends(rank)
        wrong = [call.bytes_sent for call in sends if call.bytes_sent != size]
        if wrong:
            played.fail(
                f"rank {rank} sends {wrong[0]} bytes where size={size} bytes are right: the "
                "buffer's dtype decides how many bytes an element has"
            )
        if len(sends) != repeats:
            played.fail(
                f"rank {rank} sends {len(sends)} messages where repeats={repeats} are right: "
                "each repeat is one message there and one back"
            )


def _time(seconds: Any, calls: list[Call]) -> str | None:
    """Compare with the time from before each send until the answer was there."""
    if not isinstance(seconds, float | int):
        return f"rank 0 returns {seconds!r}: return the seconds of one message"
    sends = [call for call in calls if call.op == "send"]
    answers = [call for call in calls if call.op == "recv"]
    trips = [there.end - here.start for here, there in zip(sends, answers, strict=False)]
    one_way = median(trips) / 2
    just_sending = median(here.end - here.start for here in sends)

    def near(expected: float) -> bool:
        return 0.8 < seconds / expected < 1.25

    if near(one_way):
        return None
    if near(just_sending) or seconds < 0.5 * one_way:
        return (
            f"it returns {seconds:.2g} s where a message took {one_way:.2g} s: the clock has to "
            "run from before rank 0 sends until the answer has arrived, and in seconds"
        )
    if near(2 * one_way):
        return "it returns the time of a whole round trip: one message takes half of it"
    if near(sum(trips)) or near(sum(trips) / 2):
        return "it returns the time of all repeats together: return that of one message"
    if near(sum(trips) / len(trips) / 2) or near(sum(trips) / len(trips)):
        return (
            "it returns the mean: one answer came late here, as happens on any machine, and it "
            "counts as much as all others; take the median of the round trips"
        )
    return (
        f"it returns {seconds:.2g} s where the median of the round trips, halved, is "
        f"{one_way:.2g} s"
    )


# fit_alpha_beta


def fit_alpha_beta(function: Fit) -> None:
    """Check the fit on made-up times: 3 % of noise, and the smallest and the largest came late.

    So nobody can read α off the smallest message, or β off the largest.
    """
    check = Check("fit_alpha_beta")
    draw = np.random.default_rng(fresh_seed())
    sizes = [8 * 4**k for k in range(11)]  # 8 bytes to 8 MiB
    for _ in range(4):
        alpha, beta = 10 ** draw.uniform(-6.3, -5.3), 10 ** draw.uniform(-10.3, -9.0)
        noise = draw.uniform(0.97, 1.03, len(sizes))
        noise[[0, -1]] *= LATE
        seconds = [(alpha + size * beta) * n for size, n in zip(sizes, noise, strict=True)]
        with check.communicator() as comm:
            got = check.call(function, list(sizes), list(seconds), comm=comm)
        check.agree(_fitted(got, alpha, beta, seconds[0], seconds[-1] / sizes[-1]))
    check.passed("α within 15 % and β within 10 % of the truth behind noisy times")


def _fitted(
    got: Any, alpha: float, beta: float, of_smallest: float, of_largest: float
) -> str | None:
    try:
        got_alpha, got_beta = (float(value) for value in got)
    except (TypeError, ValueError):
        return f"it returns {got!r}: return the pair (alpha, beta)"

    def near(value: float, truth: float, tolerance: float) -> bool:
        return abs(value / truth - 1) < tolerance

    if near(got_alpha, alpha, 0.15) and near(got_beta, beta, 0.1):
        return None
    if near(got_alpha, beta, 0.1) or near(got_beta, alpha, 0.15):
        return (
            "α and β are the wrong way round: α is the time of an empty message in seconds, β "
            "the seconds for each byte (np.polyfit gives the highest power first)"
        )
    if near(got_beta, 1 / beta, 0.1):
        return "β is in bytes a second, a bandwidth: the model wants seconds for each byte"
    text = (
        f"for times made with α = {alpha:.3g} s and β = {beta:.3g} s/byte it returns "
        f"{got_alpha:.3g} and {got_beta:.3g}"
    )
    if near(got_alpha, of_smallest, 0.02) and near(got_beta, of_largest, 0.02):
        return (
            f"{text}. α is the time of the smallest message alone, and β that of the largest: both "
            "came late this time. Fit all of them"
        )
    if near(got_beta, beta, 0.3):
        return (
            f"{text}. Some per cent of the largest message's time are more than α: let every "
            "message count alike by its relative error, (α + size·β)/seconds = 1"
        )
    return text


# ring_shift


def ring_shift(function: Shift) -> None:
    """Check that all ranks send at once, whatever the message size, on any number of ranks."""
    check = Check("ring_shift")
    draw = Random(fresh_seed())
    for ranks in worlds(check, draw):
        for dtype in (np.float64, np.int32):
            numbers = random_numbers(
                draw.getrandbits(32), len(ranks), 2 * draw.randrange(4, 40) + 1, dtype
            )
            with trial(check, function, ranks) as shifted:
                _shift(shifted, numbers)
    check.passed(
        f"every rank holds its left neighbour's array on 1 to {check.world_size} ranks, with "
        "messages that are never buffered, and all of them under way at the same time"
    )


def _shift(shifted: Trial, numbers: list[np.ndarray]) -> None:
    x = numbers[shifted.rank].copy()
    got = shifted.run(x)
    problem = None
    if shifted.comm is not None:
        problem = _shifted(got, x, numbers, shifted.rank)
    shifted.agree(problem)
    taken = rounds(shifted.programs())
    # One round for all at once, two or three where even and odd ranks take turns.
    if taken is not None and taken > 3:
        shifted.fail(
            f"the messages pass one after the other, in {taken} rounds: one rank receives first "
            "and all others wait in a chain. Let every rank send and receive at the same time"
        )


def _shifted(got: Any, x: np.ndarray, numbers: list[np.ndarray], rank: int) -> str | None:
    size = len(numbers)
    if not np.array_equal(x, numbers[rank]):
        return "`x` has changed: it is the message, receive into an array of its own"
    problem = difference(got, numbers[rank - 1])
    if problem is None:
        return None
    if isinstance(got, np.ndarray):
        for source in range(size):
            if np.array_equal(got, numbers[source]):
                return (
                    f"the result is the array of rank {source}, where that of the left "
                    f"neighbour, rank {(rank - 1) % size}, is right"
                )
    return problem
