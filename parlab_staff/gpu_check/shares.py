"""Divides the time for a check among its items."""

from collections.abc import Sequence

from parlab_staff.gpu_check import kernels

# Measured with four ranks on rehearsed GPUs (`tests/rehearsal`). Only the ratios matter. The number
# for lab 07 is an estimate, because a real GPU's kernels must be compiled.
LAB_SECONDS = {
    "01_mpi": 20.0,
    "02_data_parallel": 120.0,
    "03_zero": 150.0,
    "04_tensor_parallel": 70.0,
    "05_pipeline_parallel": 170.0,
    "06_mixed_precision": 130.0,
    "07_triton": 90.0,
}
OTHER_LAB_SECONDS = 90.0
START_SECONDS, BENCHMARK_SECONDS = 10.0, 5.0


def expected_seconds(name: str) -> float:
    """Return approximately how long an item takes."""
    if _is_benchmark(name):
        return START_SECONDS + BENCHMARK_SECONDS * len(kernels.benchmarks()[name])
    return LAB_SECONDS.get(name, OTHER_LAB_SECONDS)


def share(seconds: float, names: Sequence[str], jobs: int) -> float:
    """Return the first item's share of `seconds`, which all items in `names` must share.

    `jobs` labs run at a time, and then the benchmarks, one after the other.
    """
    labs = sum(expected_seconds(name) for name in names if not _is_benchmark(name)) / jobs
    benchmarks = sum(expected_seconds(name) for name in names if _is_benchmark(name))
    limit = 1.0 if _is_benchmark(names[0]) else labs / (labs + benchmarks)
    return seconds * min(limit, expected_seconds(names[0]) / (labs + benchmarks))


def _is_benchmark(name: str) -> bool:
    return name.startswith(kernels.PREFIX)
