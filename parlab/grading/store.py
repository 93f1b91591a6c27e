"""Where results are kept, so that an interrupted run goes on where it stopped."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from parlab.grading.names import file_name
from parlab.grading.reports.files import write_atomically
from parlab.grading.results import SubmissionResult

FORMAT = 1


class Busy(ValueError):
    """Another grader works in the folder."""


class Store:
    """`results/NAME/result.json` below an output folder, one for each student."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For this grader alone; raises Busy. The lock goes with the process, however it ends."""
        self.results.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                problem = f"another grader works in {self.folder}: wait, or use another --out"
                raise Busy(problem) from None
            yield

    def path(self, student: str) -> Path:
        return self.results / file_name(student) / "result.json"

    def load(self, student: str, key: dict[str, str]) -> SubmissionResult | None:
        """The stored result, where it is whole and still holds for this key."""
        try:
            data = json.loads(self.path(student).read_text())
            if data.pop("format") != FORMAT:
                return None
            result = SubmissionResult.from_json(data)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return result if result.key == key and result.student == student else None

    def save(self, result: SubmissionResult) -> None:
        path = self.path(result.student)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"format": FORMAT} | result.to_json(), indent=1) + "\n")

    def proved(self, key: dict[str, str]) -> bool:
        """Whether the lab has proved itself under this key."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.results / "proof.json").read_text()) == key
        return False

    def save_proof(self, key: dict[str, str]) -> None:
        write_atomically(self.results / "proof.json", json.dumps(key) + "\n")
