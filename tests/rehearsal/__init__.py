"""A CUDA device and NCCL without a GPU: see README.md."""

from tests.rehearsal.build import needed
from tests.rehearsal.environment import environment

__all__ = ["environment", "needed"]
