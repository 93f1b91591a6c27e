"""Checks of lab 10, putting it together: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.composing.batch_rows import batch_rows
from parlab.checks.composing.mesh_coordinates import mesh_coordinates
from parlab.checks.composing.mesh_groups import mesh_groups

__all__ = [
    "batch_rows",
    "mesh_coordinates",
    "mesh_groups",
    "show_values",
]
