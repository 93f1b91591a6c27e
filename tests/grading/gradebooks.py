"""Makes gradebooks of invented students, and reads the reports about them."""

import csv
import io
from html.parser import HTMLParser
from pathlib import Path

from parlab_staff.gradebook.entries import Entry, Gradebook
from parlab_staff.gradebook.reports import write_reports
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult, by_points

KEYS = ("ring", "tree")
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=http://x.invalid/a.png onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "=HYPERLINK(1)",
    "\t=1+1",
    "@SUM(1)",
    "-rf",
    "a;=1+1",
    "../../x",
    "..",
    "",
    "x" * 300,
    "ü" * 300,
    "CON",
    "Anna",
    "anna",
    "two\nlines, \"quoted\"",
    "\x1b[31mred\x1b[0m\x00\x07",
    "lone \udc80",
    "]]></testsuite>\ufffe",
    "[link](http://x.invalid) `code` | # *",
    "\u202eturned",
]  # fmt: skip


def exercise(key: str, points: float | None, message: str = "", **more) -> ExerciseResult:
    statuses = {None: GradeStatus.GRADER_ERROR, 0: GradeStatus.FAILED, 3: GradeStatus.PASSED}
    more = {"status": statuses.get(points, GradeStatus.PARTIAL)} | more
    return ExerciseResult(key=key, points=points, of=3, message=message, **more)


def entry(student: str = "anna", *exercises: ExerciseResult, **more) -> Entry:
    exercises = exercises or (exercise("ring", 3), exercise("tree", 1, "tree: all ranks: look"))
    of_result = {"status": by_points(list(exercises))} | {
        name: more.pop(name) for name in ("status", "message", "notes", "seconds") if name in more
    }
    result = SubmissionResult(student, "01_mpi", "a.ipynb", exercises=list(exercises), **of_result)
    return Entry(result, **more)


def hostile_entry(text: str) -> Entry:
    exercises = [exercise("ring", 1, text, notes=[text]), exercise("tree", None, f"\n{text}")]
    return entry(text, *exercises, message=text, notes=[text], name=text, late_text=text)


def missing(student: str) -> Entry:
    stubs = [exercise(key, 0, status=GradeStatus.MISSING) for key in KEYS]
    return entry(student, *stubs, status=GradeStatus.MISSING)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open, f"{path.name}: not closed: {self.open}"

    def handle_starttag(self, tag: str, attributes) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.tags if tag == "a"]


def written(folder: Path, *entries: Entry, **more) -> Path:
    write_reports(folder, Gradebook("01_mpi", entries, **more))
    return folder


def table(folder: Path) -> list[dict[str, str]]:
    text = (folder / "grades.csv").read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
