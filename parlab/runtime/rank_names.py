"""How ranks are named in texts, in the notebook's kernel and on the ranks alike."""

from collections.abc import Iterable, Mapping

# After their number: of what a rank did not send, and of what the notebook does not show.
LEFT_OUT = " characters left out"


def ranks_text(ranks: Iterable[int], world_size: int | None = None) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `ranks 0-5`, or `all ranks` when there are `world_size`."""
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
    """Ranks with equal values together, in the order of each group's first rank."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(values):
        groups.setdefault(values[rank], []).append(rank)
    return [(ranks, value) for value, ranks in groups.items()]
