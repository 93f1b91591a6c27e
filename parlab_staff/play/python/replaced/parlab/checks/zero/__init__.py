"""Checks of lab 03 in a page: the checks of exercises that do not use torch."""

from parlab.checks.zero.predict_stages import predict_stages
from parlab.checks.zero.predict_traffic import predict_traffic

__all__ = ["predict_stages", "predict_traffic"]
