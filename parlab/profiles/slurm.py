"""Ranks as a batch job of Slurm: submitted, asked for its state, cancelled.

`mpiexec` runs inside the job and asks Slurm for the nodes itself. `srun` does not start the Open
MPI that pip installs: it finds no PMIx of Slurm's, and each rank would be a world of its own.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from ipyparallel.cluster.launcher import LauncherError, SlurmEngineSetLauncher

from parlab import mpirun

# A busy slurmctld answers late; one that is not there, after its own time-out of 10 s.
ANSWER_SECONDS = 60
SITE_VARIABLES = ("SLURM_CONF", "SLURM_JWT")  # where Slurm is, and who asks
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
    "FORGOTTEN",  # not Slurm's word: it ended so long ago that Slurm knows of it no more
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """What Slurm tells of a job."""

    number: str
    state: str  # Slurm's own word
    reason: str  # why it waits, or why it failed; empty where Slurm gives none

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is just being cleared away: which, Slurm tells later."""
        return self.has_ended or self.state == "COMPLETING"

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"Slurm job {self.number}: {self.state}{reason}"


class SlurmRanks(SlurmEngineSetLauncher):
    """ipyparallel's launcher for Slurm, which can also tell how its job is.

    In the profile's `batch_template`, `{mpiexec}` is the one that belongs to this Python.
    """

    def start(self, n: int = 1) -> str:
        """Submit the job for `n` ranks; its number. Raises LauncherError with Slurm's refusal."""
        self.context["mpiexec"] = shlex.join([mpirun.mpiexec(), *mpirun.MPI_ARGS])
        self.write_batch_script(n)
        submitted = _run(*self.args, env=_outside_of_jobs(os.environ) | self.get_env())
        if submitted.returncode != 0:
            message = submitted.stderr.strip() or f"it ended with {submitted.returncode}"
            raise LauncherError(f"Slurm does not take the job.\n{message}")
        self.parse_job_id(submitted.stdout)
        self.notify_start(self.job_id)
        return self.job_id

    def job(self) -> Job | None:
        """How the job is now; None where Slurm gives no answer."""
        try:
            answer = _run(
                *("squeue", "--noheader", "--states=all", f"--jobs={self.job_id}", "--format=%T|%r")
            )
        except LauncherError:
            return None
        if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
            return None
        state, _, reason = answer.stdout.strip().partition("|")
        return Job(self.job_id, state or "FORGOTTEN", "" if reason == "None" else reason)


def _outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what Slurm sets inside a job, as a notebook on a node may be in one.

    What that job asked for would be taken for wishes of the next.
    """
    in_job = "SLURM_JOB_ID" in environment
    return {
        name: value
        for name, value in environment.items()
        if not (in_job and name.startswith("SLURM_") and name not in SITE_VARIABLES)
    }


def _run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=env,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_SECONDS,
        )
    except FileNotFoundError:
        raise LauncherError(
            f"no `{command[0]}` on this machine: open the notebook where Slurm's commands are, on "
            "a login node or in a job."
        ) from None
    except subprocess.TimeoutExpired:
        raise LauncherError(f"no answer to `{shlex.join(command)}`: is Slurm up?") from None
