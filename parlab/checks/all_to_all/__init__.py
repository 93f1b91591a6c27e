"""Checks of lab 09, experts and long contexts: one module an exercise."""

from parlab.checks.all_to_all.balance_loss import balance_loss
from parlab.checks.all_to_all.route import route
from parlab.checks.base.collective import show_values

__all__ = ["balance_loss", "route", "show_values"]
