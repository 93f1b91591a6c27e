"""File names for students, whose names may hold anything."""

import hashlib
import re

READABLE = 40


def file_name(student: str) -> str:
    """A safe name, another for every student, and readable where the student's is.

    Names that a file system could take for another one (by case, by length, by characters) end in
    a fingerprint.
    """
    readable = re.sub(r"[^a-z0-9_]+", "-", student.lower()).strip("-")[:READABLE]
    if readable == student:
        return readable
    mark = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{readable or 'student'}-{mark}"
