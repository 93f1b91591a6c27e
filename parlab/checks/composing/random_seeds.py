"""Exercise `random_seeds`: all seeds of small runs are compared with each other."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import generators
from parlab.checks.composing._meshes import mesh_unchanged

MISTAKES = Mistakes(
    of_place=(
        "{use}, is {one}, but {other} on rank {rank} of {mesh}. A seed may depend on `seed` and "
        '`layer`, `replicated` also on "dp", `sharded` on "dp" and "tp", and none of them on '
        "earlier calls"
    ),
    of_process=(
        "the same arguments give other seeds in another process (on rank {rank} of the lab), which "
        "may call it in another order. Use only the arguments, and not the lab's `rank`, the "
        "`hash` of a text, or earlier calls"
    ),
    alike=(
        "{use}, and {other}, are both {one}, but must be different. Hash the purpose and all "
        "numbers, with a separator between them: a sum or a remainder loses which is which"
    ),
    low_bits=(
        "{use}, and {other}, are equal in the lowest 32 bits, and a CPU uses no others. They are "
        "{one} and {two}"
    ),
)
PURPOSES = {"weights": (), "replicated": ("dp",), "sharded": ("dp", "tp")}
SMALL = {
    "a mesh of dp 2 × pp 2 × tp 2": {"dp": 2, "pp": 2, "tp": 2},
    "a mesh of tp 3 × dp 2 × pp 2": {"tp": 3, "dp": 2, "pp": 2},
    "a mesh of pp 1 × tp 2 × dp 3": {"pp": 1, "tp": 2, "dp": 3},
    "a mesh of one rank": {"tp": 1, "pp": 1, "dp": 1},
}
LARGE = {"dp": 12, "pp": 1, "tp": 12}
LARGEST = [  # 100,000 ranks
    {"dp": 2, "pp": 1, "tp": 50_000},
    {"tp": 2, "pp": 1, "dp": 50_000},
    {"dp": 1, "pp": 1, "tp": 100_000},
    {"tp": 1, "pp": 1, "dp": 100_000},
]
LAYERS = (0, 1, 2, 10, 11, 100, 999)


def marks(size: int) -> list[int]:
    """Return some numbers below `size`, between which all differences below `size` occur.

    If a factor is too small to pack two numbers into one, such as in 1000 · dp + tp, then two marks
    get the same seed. It is the same with remainders.
    """
    step = math.isqrt(size)
    return sorted({*range(step), *range(size - 1, -1, -step)})


def marked(mesh: Mapping[str, int]) -> list[int]:
    """Return the ranks whose last coordinate is one of the marks."""
    *_, last = mesh.values()
    return [at + mark for at in range(0, math.prod(mesh.values()), last) for mark in marks(last)]


RUNS = [  # a mesh, seeds, layers, and ranks
    *(
        (LARGE, seeds, LAYERS, range(144))
        for seeds in ((0, 1, 2), (10, 11), (999, 1000, 1001), (999_999, 1_000_000))
    ),
    *((mesh, (0, 1), (0, 1), marked(mesh)) for mesh in LARGEST),
    (LARGEST[0], (0, 1), marks(1000), (0, 1, 50_000, 50_001)),
    (LARGEST[0], marks(1_000_001), (0,), (0,)),
]
REFUSED = ({"dp": 2, "pp": 1, "tp": 3}, {"tp": 1, "pp": 2, "dp": 4})
Calls = Sequence[tuple[int, int, int]]  # seed, layer, rank


@check_of(MISTAKES)
def random_seeds(check: Check) -> str:
    """Compare the seeds of all processes, purposes, ranks, layers, and neighboring runs."""
    with check.trial() as trial:
        for _, mesh in trial.cases(SMALL):
            seed, layer = trial.draw.getrandbits(19), trial.draw.getrandbits(9)
            ranks = range(math.prod(mesh.values()))
            calls = list(product((seed, seed + 1), (layer, layer + 1), ranks))
            _small(trial, mesh, calls)
        for mesh, *numbers in RUNS:
            trial.situation = f"in the mesh {mesh}"
            # One process is enough, because small runs have shown that all get the same seeds.
            calls = list(product(*numbers)) if trial.rank == 0 else []
            seeds = _seeds(trial, mesh, calls)
            # Of so many seeds, two may agree in the lowest 32 bits by accident, but not in 63.
            trial.require(lambda: _compared(seeds, mesh, calls, bits=63))
        trial.situation = ""
        wrong = {
            f"rank {rank} in the mesh {mesh}": (1, 2, rank, dict(mesh))
            for mesh in REFUSED
            for rank in (-1, math.prod(mesh.values()))
        }
        require_refusals(trial, wrong, "rank")
    return "the same where ranks hold the same, and different for all other ranks, layers, and runs"


def _small(trial: Trial, mesh: dict[str, int], calls: Calls) -> None:
    given, other = dict(mesh), {dim: mesh[dim] + 1 for dim in reversed(mesh)}
    # Every other process starts with the last call, so that a seed cannot depend on earlier calls.
    order = calls[::-1] if trial.rank % 2 else calls
    with generators() as watched:
        seeds = _seeds(trial, given, [*order, *order[::-1]])
    if trial.rank % 2:
        seeds = seeds[len(calls) :] + seeds[: len(calls)]
    everyone = trial.gather(seeds)
    differs = [rank for rank, of_rank in enumerate(everyone) if of_rank != everyone[0]]
    weights = [of_call[:1] for of_call in _seeds(trial, other, calls[:1])]
    trial.require(
        lambda: mesh_unchanged(given, mesh),
        watched.moved,
        lambda: _compared(seeds, mesh, [*calls, *calls[::-1]], bits=32),
        lambda: MISTAKES.of_process(rank=differs[0]) if differs else None,
        lambda: _compared([seeds[0][:1], *weights], other, [calls[0]] * 2, bits=32),
    )


def _seeds(trial: Trial, mesh: Mapping[str, int], calls: Calls) -> list[tuple[int, ...]]:
    function = trial.check.function
    found = trial.run_function(lambda: [function(*call, mesh) for call in calls])
    trial.require(lambda: next(filter(None, map(_form, found)), None))
    return list(map(tuple, found or []))


def _form(got: Any) -> Finding | None:
    if found := has_type(got, tuple | list, "three ints"):
        return found
    if len(got) != len(PURPOSES):
        return observed(f"it returns {len(got)} numbers, expected three")
    for name, number in zip(PURPOSES, got, strict=True):
        if found := has_type(number, int, "a Python int", f"`{name}`"):
            return found
        if not 0 <= number < 2**63:
            return observed(f"`{name}` is {number}, which is not in [0, 2⁶³)")
    return None


def _compared(
    seeds: list[tuple[int, ...]], mesh: Mapping[str, int], calls: Calls, bits: int
) -> Finding | None:
    """Require equal seeds for the same use, and different lowest bits for different uses."""
    number_of, use_of = {}, {}
    for of_call, (seed, layer, rank) in zip(seeds, calls, strict=True):
        at, left = {}, rank
        for dim in reversed(mesh):
            left, at[dim] = divmod(left, mesh[dim])
        for number, (purpose, dims) in zip(of_call, PURPOSES.items(), strict=False):
            where = "".join(f", {dim} {at[dim]}" for dim in dims)
            use = f"`{purpose}` for seed {seed}, layer {layer}{where}"
            if (one := number_of.setdefault(use, number)) != number:
                return MISTAKES.of_place(use=use, one=one, other=number, rank=rank, mesh=mesh)
    for use, number in number_of.items():
        if (other := use_of.setdefault(number % 2**bits, use)) != use:
            mistake = MISTAKES.alike if number == number_of[other] else MISTAKES.low_bits
            return mistake(use=other, other=use, one=number_of[other], two=number)
    return None
