"""Exercise `mlp_shardings`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.composing import _shardings
from parlab.checks.composing._shardings import Case

MISTAKES = Mistakes(
    rows_first=(
        "w1 is split along its inputs, and w2 along its outputs. Then the numbers between them are "
        "not split, since they must be summed before gelu. Split the F dimension of both"
    ),
    both_by_columns=(
        "both weights are split along their outputs. Then w2 needs all numbers of the first layer, "
        "and not only those that a device has. Split w2 along its inputs"
    ),
    whole=_shardings.WHOLE,
)
RIGHT = {
    "x": ("dp",),
    "w1": (None, "tp"),
    "b1": ("tp",),
    "w2": ("tp",),
    "b2": (),
    "y": ("dp",),
}
WRONG = {
    "rows_first": RIGHT | {"w1": ("tp",), "b1": (), "w2": (None, "tp")},
    "both_by_columns": RIGHT | {"w2": (None, "tp")},
}
SHAPES = {"x": (8, 4, 8), "w1": (8, 16), "b1": (16,), "w2": (16, 8), "b2": (8,)}
MESHES = (
    {"dp": 2, "tp": 2},
    {"tp": 2, "dp": 2},
    {"dp": 1, "tp": 4},
    {"dp": 4, "tp": 1},
    {"tp": 2, "cp": 2, "dp": 1},
    {"tp": 1, "cp": 2, "dp": 2},
)


@check_of(MISTAKES, ranks=1)
def mlp_shardings(check: Check) -> str:
    """Check the compiled MLP, and what each device holds, on meshes of four devices."""
    with check.trial() as trial:
        for sizes in MESHES:
            trial.situation = f"mesh {sizes}"
            mesh = _shardings.mesh_of(sizes)
            got = trial.run(mesh)
            case = Case(sizes, "mlp", SHAPES, RIGHT, WRONG)
            _shardings.require_shardings(trial, mesh, got, case, MISTAKES)
        _shardings.require_named_dimensions(trial)
    return f"one all-reduce, and the right parts on each device, on {len(MESHES)} meshes"
