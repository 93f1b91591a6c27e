"""junit.xml for CI services and editors: a suite for each student, a case for each exercise."""

import io
from collections import Counter

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from parlab_staff.gradebook.entries import Entry, Gradebook, points_of
from parlab_staff.gradebook.reports.text import first_line, one_line, shown
from parlab_staff.gradebook.reports.words import OF_EXERCISE, points_text
from parlab_staff.grading.results import ExerciseResult, GradeStatus

# An exercise that could not be graded is an error, not skipped, so that no service shows it green.
_KINDS = dict.fromkeys(GradeStatus, Error) | {
    GradeStatus.PARTIAL: Failure,
    GradeStatus.FAILED: Failure,
    GradeStatus.MISSING: Skipped,
    GradeStatus.NOT_REACHED: Skipped,
}


def junit(gradebook: Gradebook) -> str:
    """Return the text of junit.xml. The time of a suite is the time of the whole submission."""
    document = JUnitXml(one_line(gradebook.lab))
    names: Counter[str] = Counter()
    for entry in gradebook.entries:
        name = one_line(entry.result.student)
        names[name] += 1
        # Suites with the same name would be merged, and names may look the same when printed.
        document.add_testsuite(
            _suite(entry, name if names[name] == 1 else f"{name} ({names[name]})")
        )
    document.update_statistics()
    for suite, entry in zip(document, gradebook.entries, strict=True):
        suite.time = round(entry.result.seconds, 3)
    document.time = round(sum(entry.result.seconds for entry in gradebook.entries), 3)
    file = io.BytesIO()
    document.write(file, pretty=False)
    return file.getvalue().decode()


def _suite(entry: Entry, name: str) -> TestSuite:
    suite = TestSuite(name)
    for exercise in entry.exercises:
        suite.add_testcase(_case(exercise, entry.result.lab))
    return suite


def _case(exercise: ExerciseResult, lab: str) -> TestCase:
    case = TestCase(one_line(exercise.key), classname=one_line(lab))
    if exercise.status is not GradeStatus.PASSED:
        text = first_line(exercise.message) or OF_EXERCISE[exercise.status]
        message = f"{points_text(points_of(exercise), exercise.of)}: {text}"
        outcome = _KINDS[exercise.status](message, str(exercise.status))
        outcome.text = shown(exercise.message)
        case.result = [outcome]
    return case
