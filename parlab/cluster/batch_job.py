"""Asks a batch system for the state of the job in which a profile's ranks run."""

import time

from parlab.profiles.slurm import Job, SlurmRanks

# Time between two queries about a job that waits. It is long because a whole class asks one Slurm.
PAUSE_SECONDS = 10.0
CLEARING_SECONDS = 15.0
POLL_SECONDS = 0.2


class BatchJob:
    """A batch job, and its state at the last query."""

    def __init__(self, launcher: SlurmRanks) -> None:
        self._launcher = launcher
        self._submitted = self._last_query = time.monotonic()
        self.last: Job | None = None  # None as long as the batch system has not answered

    @property
    def waits(self) -> bool:
        """Return True if the job had no nodes at the last query, or no query was answered."""
        return self.last is None or self.last.waits

    def query(self) -> Job | None:
        """Return the job's state. Ask the batch system less often the longer the job exists."""
        now = time.monotonic()
        if now - self._last_query > min(PAUSE_SECONDS, (now - self._submitted) / 5):
            self.query_now()
        return self.last

    def query_now(self) -> Job | None:
        """Ask the batch system for the job's state and return it."""
        self.last = self._launcher.job() or self.last
        self._last_query = time.monotonic()
        return self.last

    def wait_for_end(self, seconds: float = CLEARING_SECONDS) -> Job | None:
        """Wait until a job that is ending has ended, at most `seconds`, and return its state.

        The batch system needs a moment because it clears the job's nodes first.
        """
        deadline = time.monotonic() + seconds
        while (job := self.query_now()) and not job.has_ended and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return job
