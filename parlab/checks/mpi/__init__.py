"""Checks of lab 01, message passing: one function an exercise.

point_to_point  a message there and back; the α–β model fitted to it; everybody sends at once
broadcast       one rank's data on all ranks, in as few rounds as can be
ring            reduce-scatter, all-gather, and the all-reduce that they make

Each runs the learner's function through `Trial`: on communicators of its own, of several sizes
and orders of ranks, where no message is sent before its receiver has come.
"""

from parlab.checks.base import show_values
from parlab.checks.mpi.broadcast import binomial_broadcast
from parlab.checks.mpi.point_to_point import fit_alpha_beta, ping_pong, ring_shift
from parlab.checks.mpi.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter

__all__ = [
    "binomial_broadcast",
    "fit_alpha_beta",
    "ping_pong",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "ring_shift",
    "show_values",
]
