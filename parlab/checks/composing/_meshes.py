"""What the checks of meshes have in common: meshes, right coordinates, and refusals."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from parlab.checks.base.mistakes import COMMON, Finding, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial

Mesh = Mapping[str, int]

MESHES: list[dict[str, int]] = [
    {"dp": 2, "pp": 2, "tp": 2},
    {"pp": 3, "tp": 2, "dp": 4, "cp": 1},
    {"pp": 1, "ep": 3, "dp": 2},
    {"dp": 3, "ep": 2, "cp": 2, "pp": 1, "tp": 3},
    {"dp": 5},
    {"dp": 1, "tp": 1},
]


def coordinates_of(rank: int, mesh: Mesh) -> dict[str, int]:
    """Return the coordinates of a rank."""
    found, next_one = {}, math.prod(mesh.values())
    for dim, size in mesh.items():
        next_one //= size
        found[dim] = rank // next_one % size
    return found


def mesh_unchanged(now: Mesh, before: Mesh) -> Finding | None:
    """Compare the sizes of a mesh and their order."""
    alike = list(now.items()) == list(before.items())
    return None if alike else COMMON.argument_changed(name="`mesh`")


def require_named_refusal(
    trial: Trial, attempt: Callable[[], Any], accepted: Finding, *, what: str, name: str
) -> None:
    """Require that `attempt` raises a ValueError whose text has the word `name`."""
    text = require_refusal(trial, attempt, accepted, what=what)
    named = re.search(rf"\b{name}\b", text, re.IGNORECASE)
    shown = observed(f"for {what}, it raises ValueError: {text}. It does not name `{name}`")
    trial.require(lambda: None if named else shown)
