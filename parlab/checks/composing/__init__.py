"""Checks of lab 10, putting it together: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent
from parlab.checks.composing._meshes import config_for, copies_for, groups_over
from parlab.checks.composing.pipeline_pass import pipeline_pass
from parlab.checks.composing.train_step import train_step
from parlab.checks.composing.zero_step import zero_step

__all__ = [
    "config_for",
    "copies_for",
    "groups_over",
    "no_messages",
    "pipeline_pass",
    "sent",
    "show_values",
    "train_step",
    "zero_step",
]
