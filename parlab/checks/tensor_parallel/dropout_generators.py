"""Exercise `dropout_generators`."""

from typing import Any

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.untouched import generators

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
    one_generator="both are one generator: what one of them draws moves the other",
    not_repeatable="the same seed gives other numbers at a second call: a run cannot be repeated",
    seed_ignored="`{name}` draws the same numbers for seeds {seed} and {other}",
    neighbouring_seeds=(
        "`apart` of rank {rank} draws for seed {seed} what rank {other_rank} draws for seed "
        "{other}: seed + rank meets the next seed's"
    ),
)


@check_of(MISTAKES)
def dropout_generators(check: Check) -> str:
    """Check who draws what, for a seed and the next, twice."""
    for trial in check.trials():
        seed = trial.draw.randrange(1, 10**6)
        trial.situation = f"{trial.size} ranks, seeds {seed} and {seed + 1}"
        device = torch.device("cpu")
        with generators() as watched:
            made = [trial.run(s, trial.group, device) for s in (seed, seed, seed + 1)]
        trial.require(watched.moved, lambda: form(made))
        drawn = [draws(pair) for pair in made] if trial.here else None
        everyone = trial.gather(drawn)
        trial.require(
            lambda: None if made[0][0] is not made[0][1] else MISTAKES.one_generator(),
            lambda: None if drawn[0] == drawn[1] else MISTAKES.not_repeatable(),
            lambda: alike(everyone, trial),
            lambda: apart(everyone, seed),
        )
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
    return [torch.rand(8, generator=one).tolist() for one in pair]


def alike(everyone: list[Any], trial: Trial) -> Finding | None:
    for rank, drawn in enumerate(everyone):
        if drawn[0][0] != everyone[0][0][0]:
            return MISTAKES.together_differs(rank=rank)
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
