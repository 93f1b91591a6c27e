"""Fills new memory with NaN in a trial, so that reading it before writing always fails."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Make `torch.empty` return NaN, or the largest number for integers.

    Otherwise, its memory may contain zeros, which hide forgotten writes, or different numbers in
    each run.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
