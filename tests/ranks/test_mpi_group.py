"""The process group over MPI, on real ranks."""

from tests.support.on_ranks import cases_test

test_mpi_group = cases_test(
    "cases_group_reductions",
    "cases_group_operations",
    "cases_group_training",
    "cases_group_use",
    "cases_group_recovery",
    "cases_group_libraries",
    world_sizes=[3],
    nightly=[2, 4],
)
