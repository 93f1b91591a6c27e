"""Starts ranks as a Slurm batch job, and reports the state of the job.

`mpiexec` runs inside the job and asks Slurm for the nodes itself. `srun` cannot start the ranks,
because the Open MPI that pip installs does not find Slurm's PMIx: each rank would be alone in its
world.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from ipyparallel.cluster.launcher import LauncherError, SlurmEngineSetLauncher

from parlab import mpirun

# A busy slurmctld answers late. If it is down, Slurm's commands fail after their timeout of 10 s.
ANSWER_SECONDS = 60
SITE_VARIABLES = ("SLURM_CONF", "SLURM_JWT")  # Slurm's configuration, and the user's token
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
    "FORGOTTEN",  # not a Slurm state: the job ended so long ago that Slurm no longer lists it
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """The state of a job, as Slurm reports it."""

    number: str
    state: str  # Slurm's name for it
    reason: str  # why it waits, or why it failed; empty if Slurm does not say

    @property
    def waits(self) -> bool:
        """Return True if the job has no nodes yet."""
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        """Return True if the job has ended, or is ending. Slurm reports its final state later."""
        return self.has_ended or self.state == "COMPLETING"

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"Slurm job {self.number}: {self.state}{reason}"


class SlurmRanks(SlurmEngineSetLauncher):
    """ipyparallel's launcher for Slurm, which can also report the state of its job.

    In the profile's `batch_template`, `{mpiexec}` becomes the mpiexec that belongs to this Python.
    """

    def start(self, n: int = 1) -> str:
        """Submit a job for `n` ranks. Return its number, or raise LauncherError with the reason."""
        self.context["mpiexec"] = shlex.join([mpirun.mpiexec(), *mpirun.MPI_ARGS])
        try:
            self.write_batch_script(n)
        except (NameError, SyntaxError, ValueError) as error:
            raise LauncherError(
                f"the profile's batch_template has an error: {error}. Double its braces, as in "
                "${{HOME}}."
            ) from None
        submitted = _run(*self.args, env=_outside_of_jobs(os.environ) | self.get_env())
        if submitted.returncode != 0:
            message = submitted.stderr.strip() or f"it ended with {submitted.returncode}"
            raise LauncherError(f"Slurm does not take the job.\n{message}")
        self.parse_job_id(submitted.stdout)
        self.notify_start(self.job_id)
        return self.job_id

    def job(self) -> Job | None:
        """Return the current state of the job, or None if Slurm does not answer."""
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
    """Return the environment without the variables that Slurm sets inside a job.

    A notebook may run in a job itself, and `sbatch` would use that job's options for the new one.
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
