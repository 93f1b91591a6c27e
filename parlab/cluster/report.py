"""Formats what ranks printed, where they are, and how they ended."""

import signal
from collections.abc import Mapping

from parlab.runtime.ansi import without_escapes
from parlab.runtime.rank_names import LEFT_OUT, by_value, ranks_text

# The notebook shows only this many characters of a rank's output, from its start and its end. A
# browser that receives tens of megabytes stops responding.
SHOWN_START, SHOWN_END = 60_000, 10_000


def labelled(text: str, ranks: list[int], world_size: int, is_stored: bool = False) -> str:
    """Return the ranks' output, labelled with the ranks that printed it.

    The label is in front of a single line, and above several lines.

    Args:
        is_stored: True if `cluster.output` returns this text. A shortened text then says so.
    """
    text = cut(text.rstrip("\n"), ranks[0] if is_stored else None)
    if world_size == 1:
        return text
    return f"[{ranks_text(ranks, world_size)}]" + ("\n" if "\n" in text else " ") + text


def cut(text: str, rank: int | None) -> str:
    """Return `text`, without its middle if it is too long to show.

    `cluster.output(rank)` returns more of it. `rank` is None if the text is not stored.
    """
    left_out = len(text) - SHOWN_START - SHOWN_END
    if left_out <= 0:
        return text
    whole = f"{LEFT_OUT} …" not in text  # otherwise, the rank itself left out some output
    more = f"; cluster.output({rank}) has {'all of it' if whole else 'more'}"
    where = more if rank is not None else ""
    return f"{text[:SHOWN_START]}\n… {left_out:,}{LEFT_OUT}{where} …\n{text[-SHOWN_END:]}"


def positions(places: Mapping[int, str]) -> list[str]:
    """Return one line for each group of ranks that are at the same place."""
    groups = by_value(places)
    width = max((len(ranks_text(ranks)) for ranks, _ in groups), default=0)
    return [f"  {ranks_text(ranks):<{width}}  {place}" for ranks, place in groups]


def failures(errors: Mapping[int, tuple[str, str]], world_size: int) -> list[str]:
    """Return the lines of one block for each group of ranks with equal errors.

    An error is a pair of a message and frames.
    """
    blocks = by_value({rank: "\n".join(error) for rank, error in errors.items()})
    lines = []
    for ranks, text in blocks:
        message, *frames = without_escapes(text).rstrip("\n").splitlines() or [""]
        lines.append(f"{ranks_text(ranks, world_size)}: {message}")
        lines += frames
    return lines


def exit_text(status: int) -> str:
    """Describe an exit status, for example `exit status 3` or `signal 11 (SIGSEGV)`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
