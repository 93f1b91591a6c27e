"""junit.xml: what CI services and editors show, one suite a student, one case an exercise."""

import io
from collections import Counter

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from parlab.gradebook.entries import Entry, Gradebook, points_of
from parlab.gradebook.reports.text import first_line, one_line, shown
from parlab.gradebook.reports.words import OF_EXERCISE, points_text
from parlab.grading.results import ExerciseResult, GradeStatus

# What could not be graded is an error and not skipped: a service must not show it as green.
_KINDS = dict.fromkeys(GradeStatus, Error) | {
    GradeStatus.PARTIAL: Failure,
    GradeStatus.FAILED: Failure,
    GradeStatus.MISSING: Skipped,
    GradeStatus.NOT_REACHED: Skipped,
}


def junit(gradebook: Gradebook) -> str:
    """The text of junit.xml. Seconds are those of the whole submission, at its suite."""
    document = JUnitXml(one_line(gradebook.lab))
    names: Counter[str] = Counter()
    for entry in gradebook.entries:
        name = one_line(entry.result.student)
        names[name] += 1
        # Suites of one name would be taken for one: names may be alike where they are shown.
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
        said = first_line(exercise.message) or OF_EXERCISE[exercise.status]
        message = f"{points_text(points_of(exercise), exercise.of)}: {said}"
        outcome = _KINDS[exercise.status](message, str(exercise.status))
        outcome.text = shown(exercise.message)
        case.result = [outcome]
    return case
