"""`parlab grade`: reads the options, grades, and writes the reports."""

import errno
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from parlab_staff.gradebook.corrections import (
    apply_corrections,
    create_corrections,
    read_corrections,
)
from parlab_staff.gradebook.display import Display, printable
from parlab_staff.gradebook.entries import Entry, Gradebook, graded_entry
from parlab_staff.gradebook.late import read_due, read_policy
from parlab_staff.gradebook.reports import write_reports
from parlab_staff.gradebook.roster import Roster, read_roster
from parlab_staff.grading.batch import earlier_result, grade_all
from parlab_staff.grading.claiming import claim, strangers
from parlab_staff.grading.graded_lab import GradedLab, find_lab
from parlab_staff.grading.grader import Grader
from parlab_staff.grading.results import GradeStatus, SubmissionResult
from parlab_staff.grading.run import Limits, remove_leftovers
from parlab_staff.grading.sandbox.bubblewrap import choose
from parlab_staff.grading.score import zero
from parlab_staff.grading.self_test import ProofFailed
from parlab_staff.grading.store import Store
from parlab_staff.grading.student_names import plain_name
from parlab_staff.grading.submissions import Collected, Submission, find_submissions

ALL_GRADED, SOME_NOT, USAGE, NOT_PROVED, INTERRUPTED = 0, 1, 2, 3, 130
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class GradeOptions:
    """The options of `parlab grade`."""

    lab: str
    submissions: Sequence[Path]
    out: Path
    roster: Path | None = None
    due: str = ""
    late_policy: str = "none"
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    sandbox: str = "auto"
    force: bool = False
    only: Sequence[str] = ()


def grade(options: GradeOptions) -> int:
    """Grade and write the reports. Return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    begin = time.monotonic()
    try:
        batch = _Batch(options)
    except (ValueError, OSError) as error:
        return _report(str(error), USAGE)
    store = Store(options.out)
    try:
        with store.locked():
            batch.report(batch.grade(store))
    except ProofFailed as error:
        return _report(str(error), NOT_PROVED)
    except ValueError as error:
        return _report(str(error), USAGE)
    except OSError as error:
        first = "Free some disk space" if error.errno in _FULL else "Fix this"
        return _report(
            f"{error}. Finished results are saved. {first}, and run the command again", SOME_NOT
        )
    except KeyboardInterrupt:
        return _report(
            "stopped. Finished results are saved. Run the same command to continue", INTERRUPTED
        )
    return batch.conclude(time.monotonic() - begin)


class _Batch:
    """What to grade. All input is read before anything runs, so that errors are found at once."""

    def __init__(self, options: GradeOptions) -> None:
        self.options = options
        self.policy = read_policy(options.late_policy)
        self.due = read_due(options.due) if options.due else None
        self.roster = read_roster(options.roster) if options.roster else None
        self.strangers: list[str] = []  # names of submissions without a student on the roster
        self.lab: GradedLab = find_lab(options.lab)
        _refuse_inside(options.out, options.submissions)
        collected = find_submissions(list(options.submissions), self.lab.name)
        if self.roster:
            self._claim(collected, self.roster)
        self.submissions, self.ignored = collected.submissions, collected.ignored
        self._refuse_unknown(options.only)
        self.sandbox = choose(options.sandbox)

    def _claim(self, collected: Collected, roster: Roster) -> None:
        known = {entry.student: entry.name for entry in roster.entries}
        claim(collected, known)
        self.strangers = strangers(collected, known)
        if self.strangers and len(self.strangers) == len(collected.submissions):
            raise ValueError(
                f"no submission is of a student in {self.options.roster}. The submissions are "
                f"called {_some(self.strangers)}, and the roster has {_some(list(known))}. Its "
                "column `student` must have the names of the students' folders or files"
            )

    def _refuse_unknown(self, only: Sequence[str]) -> None:
        students = [s.student for s in self.submissions]
        if unknown := set(only) - set(students):
            raise ValueError(
                f"--only {', '.join(sorted(unknown))}: not among the submissions "
                f"({_some(students, 20)})"
            )

    def grade(self, store: Store) -> list[SubmissionResult]:
        remove_leftovers()
        options = self.options
        # Read it before anything runs, so that its errors are reported at once, not after an hour.
        self.corrections = read_corrections(create_corrections(options.out))
        apply_corrections(
            [self._no_submission(student) for student in self._students()],
            self.corrections,
        )
        self.grader = Grader(self.lab, options.limits, self.sandbox)
        wanted = [s for s in self.submissions if not options.only or s.student in options.only]
        before = self.lab.path.read_bytes()
        with Display(len(wanted)) as display:
            self.grader.progress = display.cell
            graded = grade_all(
                self.grader,
                wanted,
                store,
                jobs=options.jobs,
                force=options.force,
                finished=display.finished,
            )
        if self.lab.path.read_bytes() != before:
            print(
                f"parlab: {self.lab.path.name} changed during grading. These grades are based on "
                "the old version. Run the command again to grade with the new one.",
                file=sys.stderr,
            )
        return graded + self._others(store, {r.student for r in graded})

    def _others(self, store: Store, graded: set[str]) -> list[SubmissionResult]:
        """Return the results of students who are not graded now, or have no submission."""
        others = [s for s in self.submissions if s.student not in graded]
        stored = [earlier_result(store, self.grader, s) for s in others]
        kept = [result for result in stored if result is not None]
        if waiting := len(others) - len(kept):
            print(f"parlab: not graded yet: {waiting}. Run the command without --only for them")
        absent = self._without(self.submissions)
        return kept + [self._no_submission(student) for student in absent]

    def _no_submission(self, student: str) -> SubmissionResult:
        """Return the result of a student of the roster for whom no submission was found."""
        exercises = zero(self.lab, GradeStatus.MISSING)
        message = f"no submission was found under the name {student}"
        return SubmissionResult(student, self.lab.name, "", GradeStatus.MISSING, exercises, message)

    def _without(self, submissions: list[Submission]) -> list[str]:
        """Return the students of the roster who have no submission."""
        present = {plain_name(s.student) for s in submissions}
        entries = self.roster.entries if self.roster else ()
        return [e.student for e in entries if plain_name(e.student) not in present]

    def report(self, results: list[SubmissionResult]) -> list[Path]:
        corrected = apply_corrections(results, self.corrections, self._students())
        self.gradebook = Gradebook(
            lab=self.lab.name,
            entries=tuple(self._entry(result) for result in corrected),
            solution=self.grader.key["lab"],
            grader=self.grader.key["grader"],
            command=shlex.join(["parlab", *sys.argv[1:]]),
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
            ignored=tuple(map(str, self.ignored)),
        )
        return write_reports(self.options.out, self.gradebook)

    def _students(self) -> list[str]:
        """Return all students with a submission, and all of the roster."""
        entries = self.roster.entries if self.roster else ()
        return [s.student for s in self.submissions] + [e.student for e in entries]

    def _entry(self, result: SubmissionResult) -> Entry:
        student = self.roster.find(result.student) if self.roster else None
        return graded_entry(
            result, self.policy, self.due, student, self.roster is None or student is not None
        )

    def conclude(self, seconds: float) -> int:
        entries = self.gradebook.entries
        failed = [entry.result for entry in entries if entry.total is None]
        print(
            f"{len(entries)} students, {len(failed)} not graded, in {seconds:.0f} s: see "
            f"{self.options.out / 'summary.html'} and {self.options.out / 'grades.csv'}"
        )
        if self.ignored:
            names = printable(_some([path.name for path in self.ignored]))
            print(f"{len(self.ignored)} files or folders are not submissions: {names}")
        if self.strangers:
            print(
                f"{len(self.strangers)} submissions belong to no student on the roster: "
                f"{printable(_some(self.strangers))}. Does the roster have these students under "
                "other names? If so, they also have a row with 0 points.",
                file=sys.stderr,
            )
        if self.roster and self.roster.ignored:
            print(f"columns of the roster that are not used: {', '.join(self.roster.ignored)}")
        for result in failed:
            print(
                f"not graded: {printable(result.student)}: {printable('; '.join(result.notes))}",
                file=sys.stderr,
            )
        return SOME_NOT if failed else ALL_GRADED


def _refuse_inside(out: Path, submissions: Sequence[Path]) -> None:
    """Refuse an output folder in a class's folder: the next run would grade its contents."""
    out = out.resolve()
    for path in submissions:
        folder = path.resolve() if path.is_dir() else path.resolve().parent
        if out == folder or (path.is_dir() and out.is_relative_to(folder)):
            raise ValueError(
                f"--out {out} is inside {folder}, a folder of submissions: name another"
            )


def _some(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def _report(text: str, code: int) -> int:
    lines = [printable(line) for line in text.split("\n")]  # it contains names of files
    print("parlab grade:", "\n".join(lines), file=sys.stderr)
    return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
