"""Checks of lab 09, experts and long contexts: one module an exercise."""

from parlab.checks.all_to_all.pairwise_all_to_all import pairwise_all_to_all
from parlab.checks.all_to_all.uneven_all_to_all import uneven_all_to_all
from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent, turned, within_rounds

__all__ = [
    "no_messages",
    "pairwise_all_to_all",
    "sent",
    "show_values",
    "turned",
    "uneven_all_to_all",
    "within_rounds",
]
