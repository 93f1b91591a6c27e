"""Checks of lab 01, message passing: one function for each exercise, in a file with its name.

Each runs the learner's function on several numbers and orders of ranks. No message is sent before
its receiver is ready.
"""

from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, received, sent, turned, within_rounds
from parlab.checks.mpi._comms import delayed
from parlab.checks.mpi.binomial_broadcast import binomial_broadcast, broadcast_rounds
from parlab.checks.mpi.fit_alpha_beta import fit_alpha_beta
from parlab.checks.mpi.grid_communicators import grid_communicators
from parlab.checks.mpi.ping_pong import is_median, ping_pong
from parlab.checks.mpi.predict_broadcast import predict_broadcast
from parlab.checks.mpi.predict_ring import predict_ring
from parlab.checks.mpi.ring_all_gather import ring_all_gather
from parlab.checks.mpi.ring_all_reduce import ring_all_reduce
from parlab.checks.mpi.ring_reduce_scatter import ring_reduce_scatter
from parlab.checks.mpi.ring_shift import ring_shift

__all__ = [
    "binomial_broadcast",
    "broadcast_rounds",
    "delayed",
    "fit_alpha_beta",
    "grid_communicators",
    "is_median",
    "no_messages",
    "ping_pong",
    "predict_broadcast",
    "predict_ring",
    "received",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "ring_shift",
    "sent",
    "show_values",
    "turned",
    "within_rounds",
]
