"""Checks of lab 10, putting it together: one module for each exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.base.hidden import no_messages, sent
from parlab.checks.composing._steps import config_for, copies_for, groups_over
from parlab.checks.composing.attention_shardings import attention_shardings
from parlab.checks.composing.batch_rows import batch_rows
from parlab.checks.composing.embedding_groups import embedding_groups
from parlab.checks.composing.gradient_norm import gradient_norm
from parlab.checks.composing.mesh_coordinates import mesh_coordinates
from parlab.checks.composing.mesh_groups import mesh_groups
from parlab.checks.composing.mlp_shardings import mlp_shardings
from parlab.checks.composing.pipeline_pass import pipeline_pass
from parlab.checks.composing.plan_layouts import plan_layouts
from parlab.checks.composing.predict_copies import predict_copies
from parlab.checks.composing.predict_layout_memory import predict_layout_memory
from parlab.checks.composing.predict_step_seconds import predict_step_seconds
from parlab.checks.composing.random_seeds import random_seeds
from parlab.checks.composing.train_step import train_step
from parlab.checks.composing.zero_step import zero_step

__all__ = [
    "attention_shardings",
    "batch_rows",
    "config_for",
    "copies_for",
    "embedding_groups",
    "gradient_norm",
    "groups_over",
    "mesh_coordinates",
    "mesh_groups",
    "mlp_shardings",
    "no_messages",
    "pipeline_pass",
    "plan_layouts",
    "predict_copies",
    "predict_layout_memory",
    "predict_step_seconds",
    "random_seeds",
    "sent",
    "show_values",
    "train_step",
    "zero_step",
]
