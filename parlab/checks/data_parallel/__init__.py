"""Checks of lab 02, data parallelism: one module for each exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.data_parallel._replica import Replica, late_group
from parlab.checks.data_parallel.accumulate import accumulate
from parlab.checks.data_parallel.all_reduce_gradients import all_reduce_gradients
from parlab.checks.data_parallel.assign_buckets import assign_buckets
from parlab.checks.data_parallel.broadcast_state import broadcast_state
from parlab.checks.data_parallel.bucketed_data_parallel import bucketed_data_parallel
from parlab.checks.data_parallel.flat_gradients import flat_gradients
from parlab.checks.data_parallel.flat_step import flat_step
from parlab.checks.data_parallel.predict_messages import predict_messages
from parlab.checks.data_parallel.predict_no_sync import predict_no_sync
from parlab.checks.data_parallel.sharded_sampler import sharded_sampler
from parlab.checks.data_parallel.train import train

__all__ = [
    "Replica",
    "accumulate",
    "all_reduce_gradients",
    "assign_buckets",
    "broadcast_state",
    "bucketed_data_parallel",
    "flat_gradients",
    "flat_step",
    "late_group",
    "predict_messages",
    "predict_no_sync",
    "sharded_sampler",
    "show_values",
    "train",
]
