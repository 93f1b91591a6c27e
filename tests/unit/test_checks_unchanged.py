"""What checks watch while a learner's function runs."""

import random

import numpy as np
import pytest
import torch

from parlab.checks.base.unchanged import generators

DRAWS = {
    "Python": random.random,
    "NumPy": np.random.random,
    "torch": lambda: torch.rand(1).item(),
}


@pytest.mark.parametrize("library", DRAWS)
def test_a_global_generator_that_moves_is_reported_and_restored(library: str) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with generators() as watched:
        DRAWS[library]()
    assert library in watched.moved().text
    after = {name: draw() for name, draw in DRAWS.items()}
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert after == {name: draw() for name, draw in DRAWS.items()}


def test_generators_that_do_not_move_are_not_reported() -> None:
    with generators() as watched:
        pass
    assert watched.moved() is None
