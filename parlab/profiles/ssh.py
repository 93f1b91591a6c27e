"""Starts ranks on machines that ssh reaches. One `mpiexec` here logs in to each machine."""

from ipyparallel.cluster.launcher import MPIEngineSetLauncher
from traitlets import List, Unicode

from parlab import mpirun


class SshRanks(MPIEngineSetLauncher):
    """ipyparallel's launcher for MPI, with a list of machines to log in to."""

    hosts = List(Unicode(), config=True, help="machines, each as `name:ranks`")
    # Nobody can answer a password prompt in a notebook.
    ssh_command = Unicode("ssh -o BatchMode=yes", config=True, help="what logs in")

    @property
    def program(self) -> list[str]:
        # Do not add ipyparallel's `--mpi`, because parlab's engines use their MPI rank as their id.
        return self.engine_cmd

    def find_args(self) -> list[str]:
        # The other machines get only those of this machine's variables that are named here.
        passed_on = [word for name in self.get_env() for word in ("-x", name)]
        return [
            *(mpirun.mpiexec(), *mpirun.MPI_ARGS, "-n", str(self.n)),
            *("--host", ",".join(self.hosts), "--prtemca", "plm_ssh_agent", self.ssh_command),
            *(*passed_on, *self.program, *self.program_args),
        ]
