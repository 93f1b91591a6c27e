"""Checks, which labs run on all ranks to find out whether an exercise is right.

    from parlab.checks import mpi as check
    check.ring_all_reduce(ring_all_reduce)

Each lab has a package, and each exercise a function with the exercise's key as its name. A check
prints one line of what it verified, or raises CheckFailed with the same message on every rank.
"""

from parlab.checks.base.verdict import CheckFailed

__all__ = ["CheckFailed"]
