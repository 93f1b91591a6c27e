"""The table of scores that the book shows, from the record."""

from pathlib import Path

from parlab_staff.course.references import labs
from parlab_staff.mutants.record import FOLDER, Score, read

HEAD = """\
| Exercise | Mutants | The check rejects | … and names the mistake | The hidden check rejects | Survivors |
|:--|--:|--:|--:|--:|--:|
"""  # noqa: E501


def table(folder: Path = FOLDER) -> str:
    """Return a row for each exercise of the course, in Markdown, even if nothing is recorded."""
    scores = read(folder)
    return HEAD + "\n".join(_row(key, scores.get(key)) for lab in labs() for key in lab.keys)


def _row(key: str, score: Score | None) -> str:
    if score is None:
        return f"| `{key}` | not measured | | | | |"
    cells = [
        f"`{key}`",
        f"{score.mutants}",
        share(score.rejected, score.mutants),
        share(score.named, score.rejected),
        share(score.rejected_hidden, score.mutants),
        f"{score.survivors}",
    ]
    return f"| {' | '.join(cells)} |"


def share(part: int, whole: int) -> str:
    """Return a percentage such as `97%`, rounded down so that 100% means all of them."""
    if not whole:
        return "–"
    return f"{100 * part // whole}%"
