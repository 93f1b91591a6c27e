"""The terminal's display while submissions are graded."""

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parlab_staff.grading.results import SubmissionResult


class Display:
    """A progress bar with the student and the cell, and a line for each graded submission."""

    def __init__(self, total: int) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=total, now="")
        self.now: dict[str, str] = {}

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def cell(self, student: str, cell: str) -> None:
        """Show the cell that runs. The grading threads call this."""
        self.now[student] = cell
        self._show()

    def finished(self, result: SubmissionResult, stored: bool) -> None:
        self.now.pop(result.student, None)
        points = "not graded" if result.points is None else f"{result.points:g} of {result.of:g}"
        before = " (graded before)" if stored else ""
        self.bar.console.print(
            escape(f"{printable(result.student)}: {points}, {result.status}{before}")
        )
        self._show()
        self.bar.advance(self.task)

    def _show(self) -> None:
        now = "; ".join(f"{student[:30]}: {cell}" for student, cell in list(self.now.items()))
        self.bar.update(self.task, now=escape(printable(now)))


def printable(text: str) -> str:
    """Return a student's name without characters that control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode())
