"""Checks of lab 05 in a page: the checks of exercises that do not use torch."""

from parlab.checks.pipeline_parallel.gpipe import gpipe
from parlab.checks.pipeline_parallel.interleaved import interleaved
from parlab.checks.pipeline_parallel.one_f_one_b import one_f_one_b
from parlab.checks.pipeline_parallel.predict_bubble import predict_bubble
from parlab.checks.pipeline_parallel.predict_live import predict_live

__all__ = ["gpipe", "interleaved", "one_f_one_b", "predict_bubble", "predict_live"]
