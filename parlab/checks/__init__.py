"""Checks: what a lab runs on all ranks to tell a learner whether an exercise is right.

    from parlab.checks import mpi as check
    check.ring_all_reduce(ring_all_reduce)

One module a lab, one function an exercise, named by the exercise's key. A check passes with one
line of what it verified, or raises CheckFailed with the same message on every rank.
"""

from parlab.checks.base.verdict import CheckFailed

__all__ = ["CheckFailed"]
