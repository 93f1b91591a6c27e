"""The checks of lab 02 accept the reference, on any number of ranks, time after time.

What they must reject: `tests/wrong_answers/data_parallel`.
"""

import sys
import traceback
from pathlib import Path

import pytest

from parlab import mpirun

KEYS = [
    "sharded_sampler",
    "broadcast_state",
    "all_reduce_gradients",
    "train",
    "flat_gradients",
    "flat_step",
    "assign_buckets",
    "bucketed_data_parallel",
    "accumulate",
]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_reference_passes(world_size: int) -> None:
    finished = mpirun.run(
        world_size, __file__, capture_output=True, text=True, timeout=240, check=False
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-6000:]
    for key in KEYS:
        assert finished.stdout.count(f"✓ {key}: ") == world_size


def on_each_rank() -> None:
    """Run every check on the reference, the quick ones several times: their inputs are random."""
    from parlab.authoring.definitions import definitions
    from parlab.checks import data_parallel as check

    reference = definitions("02_data_parallel")
    reference["bucketed_data_parallel"] = reference["BucketedDataParallel"]
    printed = sys.stdout
    for key in KEYS:
        for _ in range(1 if key == "train" else 3):
            sys.stdout = None
            getattr(check, key)(reference[key])
        sys.stdout = printed
        print(f"✓ {key}: ")


if __name__ == "__main__":
    try:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        on_each_rank()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)
