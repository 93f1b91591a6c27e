"""Ranks on other machines: `cluster.start(4, profile="slurm")`.

`parlab profile slurm` and `parlab profile ssh` write ipyparallel profiles (`writing`), small files
that a site may edit. What they name, `slurm.SlurmRanks` and `ssh.SshRanks`, starts all ranks by one
`mpiexec` and is told nothing of notebooks: those are `parlab.cluster`'s.
"""
