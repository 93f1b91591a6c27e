"""torch.distributed over MPI, on the CPU: `backend="mpi4py"` (see `parlab.torch_mpi.group`)."""
