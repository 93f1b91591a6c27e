"""Checks everything in the course that uses a GPU, in one command: `make gpu-check`.

    python -m parlab_staff.gpu_check                    all, within 9 minutes
    python -m parlab_staff.gpu_check --only 03_zero     one lab, or one benchmark
    python -m parlab_staff.gpu_check --list             list all items
    python -m parlab_staff.gpu_check --device cpu       the same without a GPU or benchmarks

It is for a node that has torch and little else, and needs no Jupyter, no network, and no `make
setup`. It reads a lab from its executed notebook, and runs its cells in order, in one process for
each rank, on the rank's GPU. The displays of a hidden check and the output of a cell must equal
those stored in the notebook, which came from four ranks on a CPU. With several GPUs, each GPU has
one rank, and the default group uses NCCL. With one GPU, four ranks share it. A lab that starts
another number of ranks, such as `cluster.start(8)`, always gets that number. The labs' `group`, and
the default group of ranks that share a GPU, use MPI. Labs run at the same time if there are cores
for all ranks (`--jobs`). Then the benchmarks run, one at a time.

If mpi4py does not start, groups use Gloo instead of MPI, and a stand-in for `comm` provides what
the cells between the checks need. Cells that need more of MPI (visible checks, messages of mpi4py,
the emulated network) are reported as skipped. They would compute on the CPU anyway.

If torch is older than the course's version, cells that need a missing feature are skipped, and the
reason names the feature. A GPU on which torch cannot compute is a failure.

Results are written after each cell, so `_build/gpu-check.json` is useful even if a run is killed.
The exit code is 1 if something failed, crashed, or ran out of time. Otherwise it is 0, even if
there is no GPU and everything is skipped.

This was written without a GPU. One H100 has run parts of it since, but no record is stored yet.
"""
