"""Runs functions on ranks, from a process that is none of them: `RankPool`."""

from parlab_staff.ranks.pool import RankPool, RanksGone

__all__ = ["RankPool", "RanksGone"]
