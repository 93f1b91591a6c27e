"""Texts about ranks: who agrees, what they printed, how a cell ended."""

import re
import signal
from collections.abc import Iterable, Mapping

_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# A cell that prints more than this, for one rank, is cut in the notebook: a browser that is sent
# tens of megabytes stops answering.
SHOWN_START, SHOWN_END = 60_000, 10_000


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


def labelled(text: str, ranks: list[int], world_size: int) -> str:
    """The ranks' output with who printed it: beside a single line, above several."""
    text = cut(text.rstrip("\n"), ranks[0])
    if world_size == 1:
        return text
    return f"[{ranks_text(ranks, world_size)}]" + ("\n" if "\n" in text else " ") + text


def cut(text: str, rank: int) -> str:
    """`text` with its middle left out when it is too long to show."""
    left_out = len(text) - SHOWN_START - SHOWN_END
    if left_out <= 0:
        return text
    return (
        f"{text[:SHOWN_START]}\n… {left_out:,} characters left out; "
        f"cluster.output({rank}) has all of it …\n{text[-SHOWN_END:]}"
    )


def positions(places: Mapping[int, str], world_size: int) -> list[str]:
    """One line for each group of ranks that are at the same place."""
    groups = by_value(places)
    width = max((len(ranks_text(ranks)) for ranks, _ in groups), default=0)
    return [f"  {ranks_text(ranks):<{width}}  {place}" for ranks, place in groups]


def failures(errors: Mapping[int, tuple[str, str]], world_size: int) -> list[str]:
    """One block for each group of ranks whose errors, (message, frames), are equal."""
    blocks = by_value({rank: "\n".join(error) for rank, error in errors.items()})
    lines = []
    for ranks, text in blocks:
        message, *frames = _ANSI.sub("", text).rstrip("\n").splitlines() or [""]
        lines.append(f"{ranks_text(ranks, world_size)}: {message}")
        lines += frames
    return lines


def exit_text(status: int) -> str:
    """What an exit status says: `exit status 3`, `signal 11 (SIGSEGV)`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
