"""Checks of lab 05, pipeline parallelism: one module for each exercise.

Shared modules: _schedules (requirements on lists of actions), _models (models, batches, and right
values), _steps (steps, recorded from inside the stages), _requirements (requirements on a step),
and _messages (requirements on messages, and reasons why ranks wait).
"""

from parlab.checks.base.collective import show_values
from parlab.checks.pipeline_parallel.gpipe import gpipe
from parlab.checks.pipeline_parallel.interleaved import interleaved
from parlab.checks.pipeline_parallel.mailbox import mailbox
from parlab.checks.pipeline_parallel.naive_step import naive_step
from parlab.checks.pipeline_parallel.one_f_one_b import one_f_one_b
from parlab.checks.pipeline_parallel.pipeline import pipeline
from parlab.checks.pipeline_parallel.predict_bubble import predict_bubble
from parlab.checks.pipeline_parallel.predict_live import predict_live
from parlab.checks.pipeline_parallel.split_model import split_model
from parlab.checks.pipeline_parallel.sum_tied import sum_tied

__all__ = [
    "gpipe",
    "interleaved",
    "mailbox",
    "naive_step",
    "one_f_one_b",
    "pipeline",
    "predict_bubble",
    "predict_live",
    "show_values",
    "split_model",
    "sum_tied",
]
