"""What other parts build on: a process group over MPI, shared memory, paths, rank names."""
