"""Everything in the course that wants a GPU, in one command: `make gpu-check`.

    python -m parlab.gpu_check                    all, within 9 minutes
    python -m parlab.gpu_check --only 03_zero     one lab, or one benchmark
    python -m parlab.gpu_check --list             what there is
    python -m parlab.gpu_check --device cpu       the same logic without a GPU, and no benchmarks

For a node that has torch and little else. It needs no Jupyter, no network and no `make setup`: a
lab is read from its executed notebook, and its cells run in order, in one process for each rank,
on the rank's GPU. What a hidden check shows, and what a cell prints, must be what the notebook
holds, which came from four ranks on a CPU. With several GPUs each is one rank, over NCCL; with one
GPU four ranks share it, over Gloo.

MPI is used where mpi4py starts. Where it does not, a stand-in over torch.distributed carries what
the cells between the checks ask of `comm`, and what needs more of MPI (visible checks, messages of
mpi4py, the emulated network) is skipped, and says so. Those compute on the CPU anyway.

Results are written after each item: `_build/gpu-check.json` has what was done before a kill.
The exit code is 1 where something failed, crashed or ran out of time, else 0; also where there is
no GPU, and all is skipped.

Written without a GPU: until a record says otherwise, none of this has run on one.
"""
