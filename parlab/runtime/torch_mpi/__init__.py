"""torch.distributed over MPI, on the CPU: `backend="mpi4py"` (see `torch_mpi.group`)."""
