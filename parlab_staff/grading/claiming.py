"""Finds the submission of each student on the roster, even if a learning platform renamed it."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from parlab_staff.grading.student_names import plain_name
from parlab_staff.grading.submissions import Collected, Submission, bare_name

# The names of submissions downloaded from platforms. Both `one` and `two` may identify the student.
_PLATFORMS = [
    # Moodle: Anna Beispiel_4711_assignsubmission_file_, also with a file's name at the end
    r"(?P<one>.+?)(_(?P<two>\d+))?_assignsubmission_(file|onlinetext)(_.*)?",
    # Canvas: beispielanna_LATE_4711_52001_01_mpi
    r"(?P<one>[^_]+)(_LATE)?_(?P<two>\d+)_\d+_.+",
    # PrairieLearn: anna@uni.example_1_01_mpi_1_1_01_mpi
    r"(?P<one>(?P<two>[^@\s]+)@[^@\s_]+)_\d+_.+",
]
_MOST_WORDS = 5  # for a name with more words, their other orders are not tried


def claim(collected: Collected, roster: Mapping[str, str]) -> None:
    """Assign each submission that can belong to only one student of the roster to that student.

    Args:
        collected: the submissions. They get their students' names from the roster.
        roster: the full name of each student; "" if it is unknown.

    If it is not certain to whom a submission belongs, or if a file is not a notebook, the student's
    result reports it, because the student did hand in something.
    """
    on_roster = {plain_name(student) for student in roster}
    present = {plain_name(s.student) for s in collected.submissions}
    free = [s for s in collected.submissions if plain_name(s.student) not in on_roster]
    missing = {plain_name(student): name for student, name in roster.items()}
    missing = {student: name for student, name in missing.items() if student not in present}
    starts = _repository_starts([s.student for s in free], missing)
    absent = [_Student(student, name, starts) for student, name in missing.items()]
    for student in absent:
        alike = [s for s in free if student.owns(s.student)]
        owners = [one for one in absent if any(one.owns(s.student) for s in alike)]
        if alike:
            _give(collected, student.student, alike, certain=len(owners) == 1)
        else:
            _ask(collected, student, free, absent)
    collected.submissions.sort(key=lambda one: one.student)


def strangers(collected: Collected, roster: Iterable[str]) -> list[str]:
    """Return the names of submissions that belong to no student on the roster."""
    on_roster = {plain_name(student) for student in roster}
    return [s.student for s in collected.submissions if plain_name(s.student) not in on_roster]


@dataclass(frozen=True)
class _Student:
    """A student of the roster, without a submission of exactly this name.

    Attributes:
        student: as in the roster.
        name: the full name; "" if unknown.
        starts: possible starts of repository names.
    """

    student: str
    name: str
    starts: list[str]

    def owns(self, text: str) -> bool:
        """Return True if a submission has the student's name, possibly changed by a platform."""
        own = plain_name(self.student).casefold()
        if plain_name(text).casefold() == own:
            return True
        if any(_owner_of_repository(text, start) == own for start in self.starts):
            return True
        found = [re.fullmatch(form, text, re.DOTALL) for form in _PLATFORMS]
        return any(self._is_named(one["one"], one["two"] or "") for one in found if one)

    def _is_named(self, one: str, two: str) -> bool:
        own, name = _joined(self.student), _joined(self.name)
        if _joined(one) & (own | name):
            return True
        # A number from a platform may identify another student on the roster.
        return bool(_joined(two) & own) and not (two.isdigit() and name)

    def may_own(self, text: str) -> bool:
        """Return True if a name has all words of the student's identity or full name."""
        words = set(_words(text))
        own = [set(_words(known)) for known in (self.student, self.name)]
        return any(one <= words and max(map(len, one)) > 1 for one in own if one)


def _give(collected: Collected, student: str, alike: list[Submission], certain: bool) -> None:
    """Assign the only notebook of these submissions to the student, or report all of them."""
    notebooks = [s for s in alike if s.path] or alike
    if certain and len(notebooks) == 1:
        others = [s for s in alike if s is not notebooks[0]]
        notes = [f"also handed in: {s.student}: {s.problem}" for s in others]
        for one in alike:
            collected.submissions.remove(one)
        chosen = replace(notebooks[0], student=student)
        chosen = replace(chosen, notes=(*chosen.notes, *notes))
        collected.submissions.append(chosen)
        return
    collected.submissions.append(Submission(student, None, _question(student, alike)))


def _ask(
    collected: Collected, student: _Student, free: list[Submission], absent: list[_Student]
) -> None:
    """Report submissions and files that may belong to the student, if this is not certain."""
    names = {path: bare_name(path) for path in collected.ignored}
    files = [path for path, name in names.items() if student.owns(name)] or [
        path
        for path, name in names.items()
        if student.may_own(name) and not any(one.owns(name) for one in absent)
    ]
    if files:
        collected.ignored.remove(files[0])
        problem = f"no notebook was handed in, only {files[0].name}"
        collected.submissions.append(Submission(student.student, None, problem))
        return
    if alike := [s for s in free if student.may_own(s.student)]:
        problem = _question(student.student, alike)
        collected.submissions.append(Submission(student.student, None, problem))


def _question(student: str, alike: list[Submission]) -> str:
    names = ", ".join(s.student for s in alike)
    return f"perhaps handed in under another name: {names}. If so, rename it to {student}"


def _repository_starts(names: list[str], students: Iterable[str]) -> list[str]:
    """Return the starts of GitHub Classroom's names, such as `01-mpi-` of `01-mpi-anna`.

    All submissions have such a start, and most of them end with a student of the roster.
    """
    first = names[0] if len(names) > 1 else ""
    starts = [first[: at + 1] for at, character in enumerate(first) if character == "-"]
    known = {student.casefold() for student in students}
    return [
        start
        for start in starts
        if all(name.startswith(start) for name in names)
        and 2 * sum(_owner_of_repository(name, start) in known for name in names) > len(names)
    ]


def _owner_of_repository(name: str, start: str) -> str:
    """Return the student in a repository's name; a downloaded archive adds its branch."""
    owner = plain_name(name[len(start) :]).casefold()
    return owner.removesuffix("-main").removesuffix("-master")


def _joined(text: str) -> set[str]:
    """Return the letters of a name, in each order of its words: Canvas puts the last name first."""
    words = _words(text)
    orders = permutations(words) if len(words) <= _MOST_WORDS else [words]
    return {"".join(order) for order in orders} - {""}


def _words(text: str) -> list[str]:
    """Return the words of a name in lower case, without accents."""
    letters = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(c for c in letters if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", bare)
