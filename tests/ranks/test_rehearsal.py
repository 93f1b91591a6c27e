"""parlab on rehearsed GPUs, and the rehearsal itself (`tests.rehearsal`)."""

import pytest

from tests.support.on_ranks import cases_test

test_a_gpu_for_each_rank = cases_test(
    "cases_gpus", "cases_rehearsal_device", "cases_rehearsal_nccl", world_sizes=[2], gpus=2
)
test_ranks_that_share_a_gpu = pytest.mark.nightly(cases_test("cases_gpus", world_sizes=[3], gpus=1))
