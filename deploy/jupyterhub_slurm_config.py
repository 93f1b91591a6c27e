"""The same JupyterHub, with each user's JupyterLab and ranks in a Slurm job of their own.

Follow jupyterhub_config.py, but put the course into a folder that the nodes share, also install
`batchspawner`, and pass this file to `jupyterhub`. The hub runs on a machine with Slurm's commands.
It submits each job as the user, through `sudo`.
"""

from pathlib import Path

import batchspawner

BASE = Path(__file__).resolve().with_name("jupyterhub_config.py")

# JupyterHub defines these two functions. The first one ignores a path that does not exist.
load_subconfig(str(BASE))  # noqa: F821
c = get_config()  # noqa: F821
BIN = BASE.parents[1] / ".venv/bin"
c.JupyterHub.hub_ip = "0.0.0.0"  # nodes connect to the hub. Use an address that only they reach
c.JupyterHub.spawner_class = batchspawner.SlurmSpawner
c.SlurmSpawner.batchspawner_singleuser_cmd = str(BIN / "batchspawner-singleuser")
c.SlurmSpawner.req_srun = ""  # the ranks' mpiexec runs in the job, and not in a step of it
c.SlurmSpawner.req_nprocs = "4"
c.SlurmSpawner.req_memory = "8G"
c.SlurmSpawner.req_runtime = "04:00:00"
c.Spawner.start_timeout = 600  # a job may wait for a node
