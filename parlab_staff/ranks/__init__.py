"""`RankPool` runs functions on ranks, from a process that is not a rank itself."""

from parlab_staff.ranks.pool import RankPool, RanksGone

__all__ = ["RankPool", "RanksGone"]
