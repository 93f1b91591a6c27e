"""Checks of lab 10, putting it together: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent

__all__ = ["no_messages", "sent", "show_values"]
