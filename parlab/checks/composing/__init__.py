"""Checks of lab 10, putting it together: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent
from parlab.checks.composing.plan_layouts import plan_layouts
from parlab.checks.composing.predict_layout_memory import predict_layout_memory
from parlab.checks.composing.predict_step_seconds import predict_step_seconds

__all__ = [
    "no_messages",
    "plan_layouts",
    "predict_layout_memory",
    "predict_step_seconds",
    "sent",
    "show_values",
]
