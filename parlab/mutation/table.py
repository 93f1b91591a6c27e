"""The table of scores that the book shows, from the record."""

from pathlib import Path

from parlab.mutation.lab import exercises
from parlab.mutation.record import FOLDER, Score, read, sources_digest

HEAD = """\
| Exercise | Mutants | The check rejects | … and names the mistake | The hidden check rejects | Survivors |
|:--|--:|--:|--:|--:|--:|
"""  # noqa: E501
MARK = r" \*"
CHANGED = f"{MARK} Its sources have changed since it was measured."


def table(folder: Path = FOLDER) -> str:
    """A row for each exercise of the course, in Markdown, also where nothing is recorded."""
    scores = read(folder)
    rows = [
        _row(one.key, scores.get(one.key), sources_digest(one) if one.key in scores else "")
        for one in exercises()
    ]
    changed = any(MARK in row for row in rows)
    return HEAD + "\n".join(rows) + (f"\n\n{CHANGED.strip()}" if changed else "")


def _row(key: str, score: Score | None, sources: str) -> str:
    if score is None:
        return f"| `{key}` | not measured | | | | |"
    changed = "" if score.sources == sources else MARK
    survive = sum(one.accepted_by in ("both", "check") for one in score.survivors)
    cells = [
        f"`{key}`{changed}",
        f"{score.mutants}",
        share(score.rejected, score.mutants),
        share(score.named, score.rejected),
        share(score.rejected_hidden, score.mutants),
        f"{survive}",
    ]
    return f"| {' | '.join(cells)} |"


def share(part: int, whole: int) -> str:
    """`97 %`, where only all of them are 100 %."""
    if not whole:
        return "–"
    return f"{100 * part // whole} %"
