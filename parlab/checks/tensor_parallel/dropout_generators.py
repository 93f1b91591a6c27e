"""Exercise `dropout_generators`."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import generators

DRAWS = 256  # enough to notice a stream that starts a little later in another one
RUNS = 100  # small seeds, from 0
LARGEST_SEED = 10**6  # as the exercise's text says
NEAR = 100_000  # numbers after the start of a stream

MISTAKES = Mistakes(
    same_mask_everywhere=(
        "`apart` draws the same numbers on ranks {one} and {other}, so their shards would get the "
        "same dropout mask, and the same initial weights"
    ),
    together_differs=(
        "`together` draws other numbers on rank {rank} than on rank 0, so copies of one tensor "
        "would drift apart"
    ),
    shared_numbers=(
        "{one} draws numbers that {other} draws, too. Their generators have the seeds {seeds}. "
        "Give `apart` its own seed for each pair of seed and rank: above all seeds of `together`, "
        "and below 2**32, because torch on a CPU uses only the lowest 32 bits"
    ),
    later_part=(
        "{one} and {other} have the same seed, {seed} (torch on a CPU uses its lowest 32 bits), so "
        "one stream is a later part of the other. Give each generator its own seed"
    ),
    of_process=(
        "with the ranks in reverse order, rank {rank} draws other numbers from `{name}` for the "
        "same seed: use only the seed and the rank in `group`, and nothing that changes with the "
        "process (the lab's `rank`, `hash` of a string)"
    ),
)


class Stream(NamedTuple):
    """The first numbers of a generator."""

    name: str  # "together" or "apart"
    rank: int
    seed: int  # the seed that the function got
    initial: int  # the seed that the generator got
    numbers: list[int]

    def __str__(self) -> str:
        return f"`{self.name}` of rank {self.rank} with seed {self.seed}"


@check_of(MISTAKES)
def dropout_generators(check: Check) -> str:
    """Compare the numbers of all ranks, for a seed, in a second call, and for the next seed."""
    first: list[Stream] = []
    any_seed = check.draw.randrange(1, 10**6)
    for number, trial in enumerate(check.trials()):
        seed = (any_seed, any_seed, 0)[number] if number < 3 else trial.draw.randrange(1, 10**6)
        trial.add(f"seeds {seed} and {seed + 1}")
        seeds = (seed, seed, seed + 1)
        with generators() as watched:
            made = [trial.run(s, trial.group, torch.device("cpu")) for s in seeds]
        trial.require(watched.moved, lambda: next(filter(None, map(_form, made)), None))
        takes_part = zip(made, seeds, strict=True) if trial.takes_part else ()
        everyone = trial.gather([_streams(trial, *one, DRAWS) for one in takes_part])
        one, again, following = ([s for run in every for s in run] for every in zip(*everyone))  # noqa: B905
        trial.require(
            lambda: _repeats(one, again),
            lambda: _alike(one[::2]),
            lambda: _shared(one + following),
            lambda: _of_process(first, one) if number == 1 else None,
        )
        first = first or one
        # With three ranks or more, check seed 0 alone first: its messages say more.
        if number >= min(2, check.world_size - 1):
            trial.add(f"seeds 0 to {RUNS - 1}")
            own = trial.run_function(_runs, trial)
            runs = trial.gather(own)
            pairs = trial.run_function(_with_seeds_of_apart, trial, own)
            every = [stream for run in runs for stream in run]
            seeds = _seeds_apart(every)
            far = trial.gather(trial.run_function(_runs, trial, seeds)) if seeds else []
            trial.require(
                lambda: _shared(every),
                lambda: _one_seed(every),
                lambda: next((_same(a, b) for a, b in pairs if a.numbers == b.numbers), None),
                lambda: _shared([*every, *(stream for run in far for stream in run)]),
            )
    return (
        "one alike on all ranks, one of each rank's own, the same for the same seed, on 1 to "
        f"{check.world_size} ranks"
    )


def _form(pair: Any) -> Finding | None:
    if found := has_type(pair, tuple | list, "two generators"):
        return found
    if len(pair) != 2 or pair[0] is pair[1]:
        return observed("return two generators: drawing from one must not move the other")
    kinds = (has_type(one, torch.Generator, "a torch.Generator", "a generator") for one in pair)
    return next(filter(None, kinds), None)


def _streams(trial: Trial, pair: Any, seed: int, draws: int) -> list[Stream]:
    """Draw from both generators of a call."""
    drawn = [torch.randint(2**53, (draws,), generator=one).tolist() for one in pair]
    return [
        Stream(name, trial.rank, seed, one.initial_seed(), numbers)
        for name, one, numbers in zip(("together", "apart"), pair, drawn, strict=True)
    ]


def _runs(trial: Trial, seeds: Sequence[int] = range(RUNS)) -> list[Stream]:
    """Draw the first number for each of these seeds."""
    device = torch.device("cpu")
    pairs = [(seed, trial.check.function(seed, trial.group, device)) for seed in seeds]
    return [one for seed, pair in pairs for one in _streams(trial, pair, seed, 1)]


def _seeds_apart(streams: list[Stream]) -> list[int]:
    """Return seeds with which a rank may get a generator that a rank has with seed 0.

    If a function adds the seed to a number for each rank, the differences of these numbers are such
    seeds. If it multiplies the seed, the lowest 32 bits repeat after some seeds.
    """
    apart = [one for one in streams if one.name == "apart"]
    starts = [one.initial for one in apart if one.seed == 0]
    differences = {abs(a - b) for a, b in itertools.combinations(starts, 2)}
    of_rank_0 = {one.seed: one.initial for one in apart if one.rank == 0}
    differences.add(2**32 // math.gcd(of_rank_0[1] - of_rank_0[0], 2**32))
    return sorted(d for d in differences if RUNS <= d <= LARGEST_SEED)


def _with_seeds_of_apart(trial: Trial, runs: list[Stream]) -> list[tuple[Stream, Stream]]:
    """Return each `apart` with a seed that a run may have, and the `together` of that run."""
    pairs = []
    for one in runs:
        if one.name == "apart" and 0 <= one.initial <= LARGEST_SEED:
            made = trial.check.function(one.initial, trial.group, torch.device("cpu"))
            pairs.append((one, _streams(trial, made, one.initial, 1)[0]))
    return pairs


def _repeats(first: list[Stream], second: list[Stream]) -> Finding | None:
    for one, other in zip(first, second, strict=True):
        if one.numbers != other.numbers:
            return observed(
                f"{one} draws other numbers after a second call: use only the function's arguments"
            )
    return None


def _alike(everyone: list[Stream]) -> Finding | None:
    wrong = [one.rank for one in everyone if one.numbers != everyone[0].numbers]
    return MISTAKES.together_differs(rank=wrong[0]) if wrong else None


def _shared(streams: list[Stream]) -> Finding | None:
    """Name two streams that share a number. All ranks' `together` are one stream."""
    drawn: dict[int, Stream] = {}
    for one in sorted(streams, key=lambda one: one.seed):
        for number in one.numbers if one.name == "apart" or one.rank == 0 else ():
            if (other := drawn.setdefault(number, one)) is not one:
                return _same(one, other)
    return None


def _one_seed(streams: list[Stream]) -> Finding | None:
    """Name two generators with the same seed, of which one is a later part of the other."""
    known: dict[int, Stream] = {}
    for one in streams:
        other = known.setdefault(one.initial % 2**32, one)
        alike = (other.name, other.seed) == (one.name, one.seed)
        if alike and (one.name == "together" or other.rank == one.rank):
            continue
        if _is_part(one) and _is_part(other):
            return MISTAKES.later_part(one=one, other=other, seed=one.initial)
    return None


def _is_part(stream: Stream) -> bool:
    """Return whether the stream begins near the start of its seed's stream.

    It does not if the generator got its state in another way, for example, by `set_state`.
    """
    for skipped in range(2):  # `randint` draws twice for a number
        generator = torch.Generator().manual_seed(stream.initial)
        torch.rand(skipped, generator=generator)
        if (torch.randint(2**53, (NEAR,), generator=generator) == stream.numbers[0]).any():
            return True
    return False


def _same(one: Stream, other: Stream) -> Finding:
    if (one.seed, one.name, one.numbers) == (other.seed, other.name, other.numbers):
        return MISTAKES.same_mask_everywhere(one=other.rank, other=one.rank)
    seeds = f"{one.initial} and {other.initial}"
    return MISTAKES.shared_numbers(one=one, other=other, seeds=seeds)


def _of_process(first: list[Stream], now: list[Stream]) -> Finding | None:
    """Compare each rank's numbers with the same rank's numbers in another process."""
    for one, other in zip(first, now, strict=True):
        if one.numbers != other.numbers:
            return MISTAKES.of_process(rank=one.rank, name=one.name)
    return None
