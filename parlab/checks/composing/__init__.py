"""Checks of lab 10, putting it together: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent
from parlab.checks.composing.attention_shardings import attention_shardings
from parlab.checks.composing.mlp_shardings import mlp_shardings

__all__ = ["attention_shardings", "mlp_shardings", "no_messages", "sent", "show_values"]
