"""Shared foundations: a process group over MPI, shared memory, paths, rank names, code, cells."""
