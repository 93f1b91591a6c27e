"""Grades many submissions, several at a time, and skips those that have not changed."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

from parlab_staff.grading.grader import Grader, workers
from parlab_staff.grading.results import SubmissionResult
from parlab_staff.grading.self_test import prove
from parlab_staff.grading.store import Store
from parlab_staff.grading.submissions import Submission

Progress = Callable[[SubmissionResult, bool], None]  # the result, and True if it was stored before


def grade_all(
    grader: Grader,
    submissions: list[Submission],
    store: Store,
    *,
    jobs: int = 1,
    force: bool = False,
    finished: Progress = lambda result, stored: None,
) -> list[SubmissionResult]:
    """Return the results, in the order of `submissions`. Store each one as soon as it is known.

    The lab is tested first, unless nothing is left to grade. Ctrl-C ends all running submissions
    and raises KeyboardInterrupt, but stored results are kept. Raises ProofFailed and OSError.
    """
    results: dict[str, SubmissionResult] = {}
    for submission in submissions:
        stored = None if force else stored_result(store, grader, submission)
        # Try again to grade what could not be graded before.
        if stored is not None and stored.points is not None:
            results[submission.student] = stored
            finished(stored, True)
    waiting = [s for s in submissions if s.student not in results]
    if waiting:
        _prove_once(grader, store, jobs, force)
    for result in _grade(grader, waiting, store, jobs):
        results[result.student] = result
        finished(result, False)
    return [results[s.student] for s in submissions]


def stored_result(store: Store, grader: Grader, submission: Submission) -> SubmissionResult | None:
    """Return a submission's stored result if it is still valid, with the file's current time."""
    result = store.load(submission.student, grader.key_of(submission))
    if result is None:
        return None
    return replace(result, path=str(submission.path or ""), submitted=submission.submitted)


def earlier_result(store: Store, grader: Grader, submission: Submission) -> SubmissionResult | None:
    """Return the stored result of a submission that is not graded now, even if something changed.

    A note then says that it may not be valid.
    """
    result = store.load(submission.student)
    if result is None or stored_result(store, grader, submission) is not None:
        return stored_result(store, grader, submission)
    key = grader.key_of(submission)
    changed = [what for what in key if result.key.get(what) != key[what]]
    note = f"graded before, and since then changed: {', '.join(changed)}. Grade without --only"
    return replace(result, notes=[*result.notes, note])


def _prove_once(grader: Grader, store: Store, jobs: int, force: bool) -> None:
    found = None if force else store.proof(grader.key)
    if found is None:
        found = prove(grader, jobs)
        store.save_proof(grader.key, found)
    grader.worthless = found


def _grade(
    grader: Grader, waiting: list[Submission], store: Store, jobs: int
) -> Iterator[SubmissionResult]:
    """Yield and store results. Submissions that must run again, alone, come last."""
    again: list[tuple[Submission, SubmissionResult]] = []
    alone = min(jobs, len(waiting)) == 1
    with workers(grader, jobs) as pool:
        running: dict[Future[SubmissionResult], Submission] = {}
        todo = iter(waiting)
        while True:
            # Submit no more than can run, so that nothing waits when the user stops.
            while len(running) < jobs and (submission := next(todo, None)):
                running[pool.submit(grader.grade, submission)] = submission
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                submission, result = running.pop(future), future.result()
                if grader.uncertain(result.exercises) and not alone:
                    again.append((submission, result))
                    grader.progress(submission.student, "waits to run again, alone")
                    continue
                store.save(result)
                yield result
        for submission, result in again:
            result = pool.submit(grader.again, submission, result).result()
            store.save(result)
            yield result
