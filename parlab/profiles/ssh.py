"""Ranks on machines that ssh reaches: one `mpiexec` here logs in to each and starts its share."""

from ipyparallel.cluster.launcher import MPIEngineSetLauncher
from traitlets import List, Unicode

from parlab import mpirun


class SshRanks(MPIEngineSetLauncher):
    """ipyparallel's launcher for MPI, with machines to log in to."""

    hosts = List(Unicode(), config=True, help="machines, each as `name:ranks`")
    # In a notebook nobody can answer when it asks for a password.
    ssh_command = Unicode("ssh -o BatchMode=yes", config=True, help="what logs in")

    @property
    def program(self) -> list[str]:
        # Not ipyparallel's `--mpi`: parlab's engines are numbered by their MPI rank themselves.
        return self.engine_cmd

    def find_args(self) -> list[str]:
        # The other machines get none of this one's variables, but for those that are named.
        passed_on = [word for name in self.get_env() for word in ("-x", name)]
        return [
            *(mpirun.mpiexec(), *mpirun.MPI_ARGS, "-n", str(self.n)),
            *("--host", ",".join(self.hosts), "--prtemca", "plm_ssh_agent", self.ssh_command),
            *(*passed_on, *self.program, *self.program_args),
        ]
