"""Exercise `dropout_generators`."""

from itertools import chain
from typing import Any

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.untouched import generators

DRAWS = (
    256  # enough to meet a stream that starts a little later; 53 bits each do not meet by chance
)
RUNS = 100  # seeds, from 0: those that people take first

MISTAKES = Mistakes(
    same_mask_everywhere=(
        "`apart` draws the same numbers on ranks {one} and {other}: their shards would get the "
        "same dropout mask, and the same initial weights"
    ),
    together_differs=(
        "`together` draws other numbers on rank {rank} than on rank 0: copies of one tensor would "
        "drift apart"
    ),
    apart_is_together="`apart` of rank {rank} draws what `together` draws: they are to differ",
    low_bits=(
        "the seeds {one} and {other} lead to the same numbers: of a seed, torch's generator on the "
        "CPU takes the lowest 32 bits alone. Keep seeds below 2**32"
    ),
    one_stream=(
        "`apart` of rank {rank} comes to numbers that {whose} has drawn: a generator that starts "
        "elsewhere in the same stream meets it. Give each a seed of its own"
    ),
    of_process=(
        "ranks numbered in reverse: rank {rank} draws other numbers from `{name}` for the same "
        "seed. They follow from the seed and from the rank's number in `group`, and from nothing "
        "that changes with the process (the lab's `rank`, `hash` of a string)"
    ),
    one_generator="both are one generator: what one of them draws moves the other",
    not_repeatable="the same seed gives other numbers at a second call: a run cannot be repeated",
    seed_ignored="`{name}` draws the same numbers for seeds {seed} and {other}",
    neighbouring_seeds=(
        "`apart` of rank {rank} draws for seed {seed} what rank {other_rank} draws for seed "
        "{other}: seed + rank meets the next seed's"
    ),
    other_run=(
        "{one} draws for seed {seed} what {whose} draws for seed {other}: runs with small seeds "
        "share their numbers. Begin `apart` far above every seed that `together` takes"
    ),
)


@check_of(MISTAKES)
def dropout_generators(check: Check) -> str:
    """Check who draws what, for a seed and the next, twice."""
    first: list[Any] = []
    any_seed = check.draw.randrange(1, 10**6)
    for number, trial in enumerate(check.trials()):
        seed = (any_seed, any_seed, 0)[number] if number < 3 else trial.draw.randrange(1, 10**6)
        trial.situation = f"{trial.size} ranks, seeds {seed} and {seed + 1}"
        device = torch.device("cpu")
        with generators() as watched:
            made = [trial.run(s, trial.group, device) for s in (seed, seed, seed + 1)]
        trial.require(watched.moved, lambda: form(made))
        seeds = [[one.initial_seed() for one in pair] for pair in made] if trial.here else None
        drawn = [draws(pair) for pair in made] if trial.here else None
        everyone = trial.gather(drawn)
        every_seed = trial.gather(seeds)
        trial.require(
            lambda: None if made[0][0] is not made[0][1] else MISTAKES.one_generator(),
            lambda: None if drawn[0] == drawn[1] else MISTAKES.not_repeatable(),
            lambda: alike(everyone, trial),
            lambda: low_bits(everyone, every_seed),
            lambda: apart(everyone, seed),
            lambda: streams(everyone),
        )
        if number == 1 and trial.size == len(first):
            trial.require(lambda: of_process(first, everyone))
        first = first or everyone
        if number >= 2 or trial.size == 1:  # after seed 0 by itself, of which more is known
            trial.situation = f"{trial.size} ranks, seeds 0 to {RUNS - 1}"
            begun = trial.run_function(begin, trial, device)
            runs = trial.gather(begun)
            trial.require(lambda: other_run(runs))
    return (
        "one alike on all ranks, one of each rank's own, from the seed alone, on 1 to "
        f"{check.world_size} ranks"
    )


def form(made: list[Any]) -> Finding | None:
    for pair in made:
        if pair is None:
            return COMMON.returns_none()
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return evidence("it returns something else than two generators")
        for one in pair:
            if not isinstance(one, torch.Generator):
                got = f"a {type(one).__name__}"
                return COMMON.wrong_type(name="the result", got=got, right="a torch.Generator")
    return None


def draws(pair: Any) -> list[list[float]]:
    """The first numbers of both; in turn, so that one generator in two places is seen as well."""
    return [torch.randint(2**53, (DRAWS,), generator=one).tolist() for one in pair]


def alike(everyone: list[Any], trial: Trial) -> Finding | None:
    for rank, drawn in enumerate(everyone):
        if drawn[0][0] != everyone[0][0][0]:
            return MISTAKES.together_differs(rank=rank)
    return None


def low_bits(everyone: list[Any], seeds: list[Any]) -> Finding | None:
    """Whether two generators with different seeds draw alike."""
    found: dict[tuple[int, ...], int] = {}
    for drawn, given in zip(everyone, seeds, strict=True):
        for numbers, seed in zip(chain(*drawn), chain(*given), strict=True):
            other = found.setdefault(tuple(numbers), seed)
            if other != seed and (other - seed) % 2**32 == 0:
                return MISTAKES.low_bits(one=other, other=seed)
    return None


def streams(everyone: list[Any]) -> Finding | None:
    """Whether `apart` comes to numbers of `together`, or of another rank's `apart`, later on."""
    seen = {number: "`together`" for number in everyone[0][0][0]}
    for rank, drawn in enumerate(everyone):
        for number in drawn[0][1]:
            if number in seen:
                return MISTAKES.one_stream(rank=rank, whose=seen[number])
        seen |= {number: f"`apart` of rank {rank}" for number in drawn[0][1]}
    return None


def begin(trial: Trial, device: torch.device) -> list[list[int]]:
    """The first number of both generators, for each of many seeds."""
    pairs = [trial.check.function(seed, trial.group, device) for seed in range(RUNS)]
    return [[torch.randint(2**53, (), generator=one).item() for one in pair] for pair in pairs]


def other_run(runs: list[list[list[int]]]) -> Finding | None:
    """Whether some generator begins as another one does, for whatever seeds."""
    seen: dict[int, tuple[str, int]] = {}
    for seed in range(RUNS):
        drawn = [("`together`", runs[0][seed][0])]
        drawn += [(f"`apart` of rank {rank}", run[seed][1]) for rank, run in enumerate(runs)]
        for one, number in drawn:
            if number in seen:
                whose, other = seen[number]
                return MISTAKES.other_run(one=one, seed=seed, whose=whose, other=other)
            seen[number] = one, seed
    return None


def of_process(first: list[Any], now: list[Any]) -> Finding | None:
    """Whether each rank draws what the rank of its number drew, in another process."""
    for rank, (one, other) in enumerate(zip(first, now, strict=True)):
        for place, name in enumerate(("together", "apart")):
            if one[0][place] != other[0][place]:
                return MISTAKES.of_process(rank=rank, name=name)
    return None


def apart(everyone: list[Any], seed: int) -> Finding | None:
    """`everyone[rank][call]` has the numbers of `together` and `apart`; call 2, the next seed's."""
    first = [drawn[0][1] for drawn in everyone]
    for rank, mine in enumerate(first):
        for other in range(rank):
            if mine == first[other]:
                return MISTAKES.same_mask_everywhere(one=other, other=rank)
    if everyone[0][0][0] == everyone[0][2][0]:
        return MISTAKES.seed_ignored(name="together", seed=seed, other=seed + 1)
    for rank, mine in enumerate(first):
        if mine == everyone[0][0][0]:
            return MISTAKES.apart_is_together(rank=rank)
        if mine == everyone[rank][2][1]:
            return MISTAKES.seed_ignored(name="apart", seed=seed, other=seed + 1)
        for other in range(len(everyone)):
            if mine == everyone[other][2][1]:
                return MISTAKES.neighbouring_seeds(
                    rank=rank, seed=seed, other_rank=other, other=seed + 1
                )
    return None
