"""Exercise `random_seeds`: all seeds of small runs are compared with each other."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import generators
from parlab.checks.composing._meshes import mesh_unchanged, places

MISTAKES = Mistakes(
    of_place=(
        "{one}, and {other} on rank {rank}, but both must draw the same numbers. A seed may depend "
        'on `seed` and `layer`, `replicated` also on "dp", and `sharded` on "dp" and "tp"'
    ),
    of_process=(
        "the same arguments give other seeds in another process (on rank {rank} of the lab). Use "
        "only the arguments, and not the lab's `rank` or the `hash` of a text"
    ),
    alike=(
        "{one}, and also {other}: these must be different, because they differ in {what}. Hash the "
        "purpose and all numbers, with a separator between them: a sum loses which is which"
    ),
    low_bits=(
        "{one}, and {other}: these are equal in the lowest 32 bits, and a CPU uses no others"
    ),
)
OF_MESH = observed("`weights` is another number in another mesh. Use only `seed` and `layer`")
REPEATED = observed("a second call with the same arguments returns other seeds: use only them")
PURPOSES = ("weights", "replicated", "sharded")
MESHES = {
    "dp 2 × pp 2 × tp 2": {"dp": 2, "pp": 2, "tp": 2},
    "tp 3 × dp 2 × pp 2": {"tp": 3, "dp": 2, "pp": 2},
    "pp 1 × tp 2 × dp 3": {"pp": 1, "tp": 2, "dp": 3},
    "one rank": {"tp": 1, "pp": 1, "dp": 1},
}
LARGE = {"dp": 12, "pp": 1, "tp": 12}
LARGEST = {"dp": 6250, "pp": 2, "tp": 8}  # 100,000 ranks
SEEDS = ((0, 1, 2), (10, 11), (999, 1000, 1001), (999_999, 1_000_000))
LAYERS = (0, 1, 2, 10, 11, 100, 999)
REFUSED = ({"dp": 2, "pp": 1, "tp": 3}, {"tp": 1, "pp": 2, "dp": 4})


class Use(NamedTuple):
    """One seed and what it is for. A coordinate is None if it does not matter."""

    number: int
    purpose: str
    seed: int
    layer: int
    dp: int | None
    tp: int | None
    rank: int

    @property
    def key(self) -> tuple:
        """What the seed is for: two seeds with the same key are equal, and others differ."""
        return self[1:6]

    def __str__(self) -> str:
        return (
            f"`{self.purpose}` is {self.number} for seed {self.seed}, layer {self.layer}, rank "
            f"{self.rank}"
        )


@check_of(MISTAKES)
def random_seeds(check: Check) -> str:
    """Compare the seeds of all processes, purposes, ranks, layers, and neighboring runs."""
    with check.trial() as trial:
        for _, mesh in trial.cases(MESHES):
            first, layer = trial.draw.getrandbits(19), trial.draw.getrandbits(9)
            _small(trial, mesh, (first, first + 1), (layer, layer + 1))
        for seeds in SEEDS:
            trial.situation = f"dp 12 × tp 12, seeds {seeds[0]} to {seeds[-1]}"
            _large(trial, LARGE, range(144), seeds, LAYERS)
        trial.situation = "100,000 ranks"
        _large(trial, LARGEST, (0, 1, 7, 8, 99_983, 99_984, 99_999), (0, 1), (0, 1, 998, 999))
        trial.situation = ""
        wrong = {
            f"rank {rank} in the mesh {mesh}": (1, 2, rank, dict(mesh))
            for mesh in REFUSED
            for rank in (-1, math.prod(mesh.values()))
        }
        require_refusals(trial, wrong, "rank")
    return "the same where ranks hold the same, and different for all other ranks, layers, and runs"


def _small(trial: Trial, mesh: dict[str, int], seeds: Sequence[int], layers: Sequence[int]) -> None:
    ranks = range(math.prod(mesh.values()))
    calls = list(product(seeds, layers, ranks))
    before = dict(mesh)
    with generators() as watched:
        results = trial.run_function(_call_all, trial, mesh, calls)
        again = trial.run_function(_call_all, trial, mesh, calls[::-1])
    trial.require(
        lambda: mesh_unchanged(mesh, before),
        watched.moved,
        lambda: next(filter(None, map(_form, results)), None),
        lambda: None if _equal(results, again[::-1]) else REPEATED,
    )
    everyone = trial.gather(results)
    other = {dim: size + 1 for dim, size in mesh.items()}
    elsewhere = trial.run_function(_call_all, trial, other, calls[: len(ranks)])
    trial.require(
        lambda: _in_every_process(everyone),
        lambda: _alike(uses := list(_uses(results, mesh, calls))) or _different(uses, 32),
        lambda: None if elsewhere[0][0] == results[0][0] else OF_MESH,
    )


def _large(
    trial: Trial,
    mesh: dict[str, int],
    ranks: Iterable[int],
    seeds: Sequence[int],
    layers: Sequence[int],
) -> None:
    """Compare so many seeds that lowest bits may be equal by accident, but 63 bits are not."""
    # One process is enough: small runs have shown that all of them get the same seeds.
    calls = list(product(seeds, layers, ranks)) if trial.rank == 0 else []
    results = trial.run_function(_call_all, trial, mesh, calls)

    def right() -> Finding | None:
        uses = list(_uses(results, mesh, calls))
        return next(filter(None, map(_form, results)), None) or _alike(uses) or _different(uses)

    trial.require(right)


def _call_all(trial: Trial, mesh: dict[str, int], calls: list[tuple[int, int, int]]) -> list[Any]:
    return [trial.check.function(*place, mesh) for place in calls]


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


def _equal(one: list[Any], other: list[Any]) -> bool:
    return list(map(tuple, one)) == list(map(tuple, other))


def _in_every_process(everyone: list[list[Any]]) -> Finding | None:
    for rank, results in enumerate(everyone):
        if not _equal(results, everyone[0]):
            return MISTAKES.of_process(rank=rank)
    return None


def _uses(
    results: list[Any], mesh: Mapping[str, int], calls: list[tuple[int, int, int]]
) -> Iterator[Use]:
    coordinates = places(mesh)
    for numbers, (seed, layer, rank) in zip(results, calls, strict=True):
        at = coordinates[rank]
        dims = {"weights": (None, None), "replicated": (at["dp"], None)}
        for number, purpose in zip(numbers, PURPOSES, strict=True):
            dp, tp = dims.get(purpose, (at["dp"], at["tp"]))
            yield Use(number, purpose, seed, layer, dp, tp, rank)


def _alike(uses: Iterable[Use]) -> Finding | None:
    """Require the same seeds on ranks that hold the same."""
    first: dict[tuple, Use] = {}
    for use in uses:
        one = first.setdefault(use.key, use)
        if one.number != use.number:
            return MISTAKES.of_place(one=one, other=use.number, rank=use.rank)
    return None


def _different(uses: Iterable[Use], bits: int = 63) -> Finding | None:
    """Require that seeds for different uses differ, in their lowest bits."""
    seen: dict[int, Use] = {}
    pairs = ((seen.setdefault(use.number % 2**bits, use), use) for use in uses)
    clashes = [pair for pair in pairs if pair[0].key != pair[1].key]
    if not clashes:
        return None
    # The one with the fewest differences shows best what is missing.
    one, other = min(clashes, key=lambda pair: len(_differences(*pair)))
    if one.number != other.number:
        return MISTAKES.low_bits(one=one, other=other)
    return MISTAKES.alike(one=one, other=other, what=" and ".join(_differences(one, other)))


def _differences(one: Use, other: Use) -> list[str]:
    names = Use._fields[1:6]
    if one.purpose != other.purpose:  # their coordinates cannot be compared
        names = names[:3]
    return [name for name in names if getattr(one, name) != getattr(other, name)]
