"""Ranks on other machines: `cluster.start(4, profile="slurm")`.

`parlab profile slurm` and `parlab profile ssh` write ipyparallel profiles (`writing`), small files
that a site may edit. Each names a launcher, `slurm.SlurmRanks` or `ssh.SshRanks`, which starts all
ranks with one `mpiexec`. The launchers do not depend on notebooks, which `parlab.cluster` handles.
"""
