"""What the notebook shows when a rank cell has ended."""

from collections.abc import Mapping

from ipyparallel.error import RemoteError

from parlab.cluster import report
from parlab.cluster.cell import Ending, Outcome
from parlab.cluster.channel import Channel
from parlab.cluster.errors import (
    DeadlineExceeded,
    RankDied,
    RankError,
    RankFailed,
    RankInterrupted,
)
from parlab.cluster.locations import Cells, where
from parlab.cluster.replies import Replies

OTHERS = "The others were at:"
INTACT = "The ranks are free again and their variables are intact; `comm` is as good as new."


def told_errors(replies: Replies, skip: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """(message, frames) of each rank that raised, but for those that were stuck and freed."""
    return {
        rank: _told(error) if isinstance(error, RemoteError) else (repr(error), "")
        for rank, error in replies.errors().items()
        if rank not in skip
    }


def _told(error: RemoteError) -> tuple[str, str]:
    """The rank's formatter sends lines of the cell, indented, or a text that tells all itself."""
    text = error.traceback or ""
    if text.startswith("  ") or not text:
        return f"{error.ename}: {error.evalue}".rstrip(": "), text
    return text, ""


def error_of(outcome: Outcome, replies: Replies, timeout: float, n: int) -> RankError | None:
    """The exception that the cell raises, without what happens to the ranks; None when well."""
    errors = told_errors(replies, outcome.stuck)
    failed = report.failures(errors, n)
    places = report.positions(outcome.stuck, n)
    match outcome.ending:
        case Ending.FINISHED:
            return RankFailed("\n".join(failed)) if failed else None
        case Ending.FAILED:
            return RankFailed("\n".join([*failed, OTHERS, *places]))
        case Ending.DEADLINE:
            head = [f"Stopped after {timeout:g} s (`%%px --timeout SECONDS` gives more). Not done:"]
            return DeadlineExceeded("\n".join(head + places + failed))
        case Ending.INTERRUPTED:
            head = ["Interrupted. Not done:"] if places else ["Interrupted."]
            return RankInterrupted("\n".join(head + places + failed))
    raise AssertionError(outcome.ending)


def died_text(deaths: Mapping[int, int], channel: Channel, cells: Cells, n: int) -> str:
    """Which ranks died, of what, and where when the rank could still say it."""
    told = {}
    for rank, status in deaths.items():
        place = where(channel.links[rank].stacks, cells) if status < 0 else None
        told[rank] = report.exit_text(status) + (f" at {place}" if place else "")
    return "\n".join(
        f"{report.ranks_text(ranks).capitalize()} died: {text}"
        for ranks, text in report.by_value(told)
    )


def died_error(
    outcome: Outcome, channel: Channel, cells: Cells, replies: Replies, n: int
) -> RankError:
    """The exception for a cell during which a rank died."""
    stuck = {rank: place for rank, place in outcome.stuck.items() if rank not in outcome.deaths}
    lines = [died_text(outcome.deaths, channel, cells, n)]
    if stuck:
        lines += [OTHERS, *report.positions(stuck, n)]
    skip = stuck | {rank: "" for rank in outcome.deaths}
    return RankDied("\n".join(lines + report.failures(told_errors(replies, skip), n)))


def replaced_text(gone: list[str]) -> str:
    """What a restart took away."""
    text = "The ranks are being started again; what the cells imported is imported again."
    if gone:
        text += " Gone: " + ", ".join(f"`{name}`" for name in gone) + ". Run their cells again."
    return text


def kept_text(outcome: Outcome) -> str:
    """What a release kept, and what it could not."""
    text = INTACT
    if outcome.torch_is_new:
        text += (
            " torch.distributed was started anew: `group` is as good as new; objects made on the "
            "default group (DDP models, meshes) have to be made again."
        )
    if outcome.lost:
        names = ", ".join(f"`{name}`" for name in outcome.lost)
        text += f" Ended with the release: {names}. Run the cell that made it again."
    return text
