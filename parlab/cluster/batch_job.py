"""The batch job that the ranks of a profile are: looked at now and then."""

import time

from parlab.profiles.slurm import Job, SlurmRanks

# Between two looks at a job that waits: a whole class asks one Slurm.
PAUSE_SECONDS = 10.0
CLEARING_SECONDS = 15.0
POLL_SECONDS = 0.2


class BatchJob:
    """How a job is, as of the last look."""

    def __init__(self, launcher: SlurmRanks) -> None:
        self._launcher = launcher
        self._submitted = self._asked = time.monotonic()
        self.last: Job | None = None  # None as long as the batch system has not answered

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet, as far as is known."""
        return self.last is None or self.last.waits

    def query(self) -> Job | None:
        """Ask how the job is, ever more seldom."""
        now = time.monotonic()
        if now - self._asked > min(PAUSE_SECONDS, (now - self._submitted) / 5):
            self.look_now()
        return self.last

    def look_now(self) -> Job | None:
        self.last = self._launcher.job() or self.last
        self._asked = time.monotonic()
        return self.last

    def look_at_end(self, seconds: float = CLEARING_SECONDS) -> Job | None:
        """How a job ends that is about to: its nodes are cleared first, which takes a moment."""
        deadline = time.monotonic() + seconds
        while (job := self.look_now()) and not job.has_ended and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return job
