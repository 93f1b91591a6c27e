"""What stands in memory that nobody has written: NaN in a trial, so that it is seen each time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Memory of `torch.empty` holds NaN (integers: their largest number).

    Else it holds by chance zeros, which hide what is forgotten, or other numbers at each run.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
