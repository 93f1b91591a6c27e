"""Stores results, so that an interrupted run continues where it stopped."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from parlab.runtime.paths import write_atomically
from parlab_staff.grading.file_names import file_name
from parlab_staff.grading.no_op_answers import Worthless
from parlab_staff.grading.results import SubmissionResult

FORMAT = 2


class Store:
    """The results in an output folder: `results/NAME/result.json` for each student."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this grader. Raises ValueError if it cannot be used now.

        The lock ends when the process ends, even if it crashes.
        """
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = f"another grader works in {self.folder}: wait, or use another --out"
                raise ValueError(problem) from None
            except OSError as error:
                problem = f"--out {self.folder} cannot be locked: {error.strerror}"
                raise ValueError(f"{problem}. Name a folder on another file system") from None
            yield

    def _lock_file(self) -> TextIO:
        try:
            self.results.mkdir(parents=True, exist_ok=True)
            return open(self.folder / ".lock", "w", encoding="utf-8")
        except OSError as error:
            problem = f"--out {self.folder} cannot be written to: {error.strerror}"
            raise ValueError(f"{problem}. Name a folder, new or of an earlier run") from None

    def path(self, student: str) -> Path:
        return self.results / file_name(student) / "result.json"

    def load(self, student: str, key: dict[str, str] | None = None) -> SubmissionResult | None:
        """Return the stored result if it is complete and, with `key`, valid for this key."""
        try:
            data = json.loads(self.path(student).read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                return None
            result = SubmissionResult.from_json(data)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        holds = key is None or result.key == key
        return result if holds and result.student == student else None

    def save(self, result: SubmissionResult) -> None:
        path = self.path(result.student)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"format": FORMAT} | result.to_json(), indent=1) + "\n")

    def proof(self, key: dict[str, str]) -> Worthless | None:
        """Return the result of the test of the lab with this key; None if it was not tested."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads((self.results / "proof.json").read_text(encoding="utf-8"))
            if data["key"] == key:
                return {
                    check: frozenset(tuple(place) for place in places)
                    for check, places in data["worthless"].items()
                }
        return None

    def save_proof(self, key: dict[str, str], found: Worthless) -> None:
        places = {check: sorted(places, key=str) for check, places in found.items()}
        text = json.dumps({"key": key, "worthless": places})
        write_atomically(self.results / "proof.json", text + "\n")
