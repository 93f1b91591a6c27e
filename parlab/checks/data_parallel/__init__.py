"""Checks of lab 02, data parallelism: one function an exercise.

sampler        who trains on what
state          the same model on every rank
gradients      the weighted sum, per parameter
flat           gradients that are views into one buffer
flat_step      a step with one message
training       the learning curve of one rank, on any number of them
buckets        which gradients travel together
overlap        when they leave
accumulation   several backward passes, one synchronisation
"""

from parlab.checks.base import show_values
from parlab.checks.data_parallel.accumulation import accumulate
from parlab.checks.data_parallel.buckets import assign_buckets
from parlab.checks.data_parallel.flat import flat_gradients
from parlab.checks.data_parallel.flat_step import flat_step
from parlab.checks.data_parallel.gradients import all_reduce_gradients
from parlab.checks.data_parallel.overlap import bucketed_data_parallel
from parlab.checks.data_parallel.sampler import sharded_sampler
from parlab.checks.data_parallel.state import broadcast_state
from parlab.checks.data_parallel.training import train

__all__ = [
    "accumulate",
    "all_reduce_gradients",
    "assign_buckets",
    "broadcast_state",
    "bucketed_data_parallel",
    "flat_gradients",
    "flat_step",
    "sharded_sampler",
    "show_values",
    "train",
]
