"""The examples use GPUs if each rank can have one, and otherwise the CPU."""

import re

import pytest

from parlab.runtime.paths import ROOT, numbered
from tests import rehearsal
from tests.support.torchrun import DEADLINE, torchrun


@pytest.mark.nightly
@pytest.mark.timeout(2 * DEADLINE + 60)
@pytest.mark.parametrize("example", [page.stem for page in numbered(ROOT / "book", ".md")[1:]])
def test_gpus_are_used_if_each_rank_can_have_one(example: str) -> None:
    """Two ranks with one GPU use the CPU, as if there were none. With two GPUs, they use these."""
    rehearsal.needed()
    size = "--samples=2048" if example == "02_data_parallel" else "--steps=10"
    losses = {}
    for gpus in (1, 2):
        # On a GPU, the kernel would be compiled, which a rehearsal cannot do.
        more = ["--optimizer=torch"] if (example, gpus) == ("07_triton", 2) else []
        printed = torchrun(2, example, size, *more, gpus=gpus)
        losses[gpus] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[2] == pytest.approx(losses[1], abs=0.05)
