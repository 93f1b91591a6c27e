"""Formats the names of ranks in texts, for the notebook's kernel and for the ranks."""

from collections.abc import Iterable, Mapping

# The text after the number of characters that a rank did not send or a notebook does not show.
LEFT_OUT = " characters left out"


def ranks_text(ranks: Iterable[int], world_size: int | None = None) -> str:
    """Return a name such as `rank 2`, `ranks 0, 1, 3`, or `ranks 0-5`.

    If there are `world_size` ranks, return `all ranks`, or `rank 0` if it is the only one.
    """
    ranks = sorted(ranks)
    if world_size is not None and len(ranks) == world_size:
        return "all ranks" if world_size > 1 else "rank 0"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    return "ranks " + ", ".join(parts)


def by_value(values: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Group ranks with equal values. Return (ranks, value), in the order of the first ranks."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(values):
        groups.setdefault(values[rank], []).append(rank)
    return [(ranks, value) for value, ranks in groups.items()]
