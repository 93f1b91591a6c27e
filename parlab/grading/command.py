"""`parlab grade`: reads what was asked, grades, and writes the reports."""

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from parlab.grading.batch import grade_all, stored_result
from parlab.grading.corrections import apply_corrections, create_corrections, read_corrections
from parlab.grading.display import Display, printable
from parlab.grading.gradebook import Entry, Gradebook, graded_entry
from parlab.grading.grader import Grader
from parlab.grading.late import read_due, read_policy
from parlab.grading.master import Master, find_master
from parlab.grading.proof import ProofFailed
from parlab.grading.reports import write_reports
from parlab.grading.results import Status, SubmissionResult
from parlab.grading.roster import read_roster, same_name
from parlab.grading.running import Limits, remove_leftovers
from parlab.grading.sandbox import choose
from parlab.grading.scoring import zero
from parlab.grading.store import Store
from parlab.grading.submissions import Submission, find_submissions

ALL_GRADED, SOME_NOT, USAGE, NOT_PROVED, INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True)
class Asked:
    """What the user asked for; the options of `parlab grade`."""

    lab: str
    submissions: Sequence[Path]
    out: Path
    roster: Path | None = None
    due: str = ""
    late_policy: str = "none"
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    sandbox: str = "auto"
    isolate: bool = False
    force: bool = False
    only: Sequence[str] = ()


def grade(asked: Asked) -> int:
    """Grade, write the reports, say what came of it; the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    begin = time.monotonic()
    try:
        batch = _Batch(asked)
    except (ValueError, OSError) as error:
        return _say(str(error), USAGE)
    store = Store(asked.out)
    try:
        with store.locked():
            batch.report(batch.grade(store))
    except ProofFailed as error:
        return _say(str(error), NOT_PROVED)
    except ValueError as error:
        return _say(str(error), USAGE)
    except OSError as error:
        return _say(
            f"{error}. What was graded before is kept: make room, and give the same command again",
            SOME_NOT,
        )
    except KeyboardInterrupt:
        return _say(
            "stopped. What was graded is kept: the same command goes on from there", INTERRUPTED
        )
    return batch.told(time.monotonic() - begin)


class _Batch:
    """All that is read before anything runs, so that bad input costs nothing."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.policy = read_policy(asked.late_policy)
        self.due = read_due(asked.due) if asked.due else None
        self.roster = read_roster(asked.roster) if asked.roster else None
        self.master: Master = find_master(asked.lab)
        self.submissions = self._chosen(
            find_submissions(list(asked.submissions), self.master.name), asked.only
        )
        self.sandbox = choose(asked.sandbox)

    def _chosen(self, found: list[Submission], only: Sequence[str]) -> list[Submission]:
        unknown = set(only) - {s.student for s in found}
        if unknown:
            names = ", ".join(s.student for s in found[:20])
            raise ValueError(
                f"--only {', '.join(sorted(unknown))}: not among the submissions ({names}"
                + (", …)" if len(found) > 20 else ")")
            )
        return found

    def grade(self, store: Store) -> list[SubmissionResult]:
        remove_leftovers()
        asked = self.asked
        # Before anything runs: what is wrong in it should not be told after an hour.
        self.corrections = read_corrections(create_corrections(asked.out))
        self.grader = Grader(self.master, asked.limits, self.sandbox, asked.isolate)
        wanted = [s for s in self.submissions if not asked.only or s.student in asked.only]
        before = self.master.path.read_bytes()
        with Display(len(wanted)) as display:
            self.grader.progress = display.cell
            graded = grade_all(
                self.grader, wanted, store, jobs=asked.jobs, force=asked.force, done=display.done
            )
        if self.master.path.read_bytes() != before:
            print(
                f"parlab: {self.master.path.name} changed while it graded; these grades are of "
                "what it was before. Give the same command again to grade with the new one.",
                file=sys.stderr,
            )
        return graded + self._not_asked(store, {r.student for r in graded})

    def _not_asked(self, store: Store, done: set[str]) -> list[SubmissionResult]:
        """With --only, what others had before; and who handed in nothing."""
        others = [s for s in self.submissions if s.student not in done]
        stored = [stored_result(store, self.grader, s) for s in others]
        found = [result for result in stored if result is not None]
        if self.roster is None or self.asked.only:
            return found
        here = {same_name(name) for name in done | {s.student for s in others}}
        absent = [e.student for e in self.roster.entries if same_name(e.student) not in here]
        return found + [
            SubmissionResult(
                name, self.master.name, "", Status.MISSING, zero(self.master, Status.MISSING),
                message="nothing was handed in",
            )
            for name in absent
        ]  # fmt: skip

    def report(self, results: list[SubmissionResult]) -> list[Path]:
        known = [s.student for s in self.submissions]
        known += [e.student for e in self.roster.entries] if self.roster else []
        corrected = apply_corrections(results, self.corrections, known)
        self.gradebook = Gradebook(
            lab=self.master.name,
            entries=tuple(self._entry(result) for result in corrected),
            master=self.grader.key["master"],
            grader=self.grader.key["grader"],
            command=shlex.join(["parlab", *sys.argv[1:]]),
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        return write_reports(self.asked.out, self.gradebook)

    def _entry(self, result: SubmissionResult) -> Entry:
        student = self.roster.find(result.student) if self.roster else None
        return graded_entry(
            result, self.policy, self.due, student, self.roster is None or student is not None
        )

    def told(self, seconds: float) -> int:
        entries = self.gradebook.entries
        failed = [entry.result for entry in entries if entry.total is None]
        print(
            f"{len(entries)} students, {len(failed)} not graded, in {seconds:.0f} s: see "
            f"{self.asked.out / 'summary.html'} and {self.asked.out / 'grades.csv'}"
        )
        for result in failed:
            print(
                f"not graded: {printable(result.student)}: {printable('; '.join(result.notes))}",
                file=sys.stderr,
            )
        return SOME_NOT if failed else ALL_GRADED


def _say(text: str, code: int) -> int:
    lines = [printable(line) for line in text.split("\n")]  # names of files are in it
    print("parlab grade:", "\n".join(lines), file=sys.stderr)
    return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
