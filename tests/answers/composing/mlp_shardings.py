"""Answers to `mlp_shardings`."""

import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from parlab.jax_layers import make_mesh
from parlab_staff.answers import Answers

answers = Answers("mlp_shardings")

X, Y = '"x": P("dp")', '"y": P("dp")'
W1, B1 = '"w1": P(None, "tp")', '"b1": P("tp")'
W2, B2 = '"w2": P("tp")', '"b2": P()'
RETURN = "{name: NamedSharding(mesh, spec) for name, spec in specs.items()}"

ROWS = (W1, '"w1": P("tp")'), (W2, '"w2": P(None, "tp")')
answers.edit("rows_first", "as_in_pytorch", *ROWS, (B1, '"b1": P()'))
answers.edit("both_by_columns", "two_column_layers", (W2, '"w2": P(None, "tp")'))
answers.edit(None, "both_biases_split", (B2, '"b2": P("tp")'))
answers.edit("whole", "no_bias_split", (B1, '"b1": P()'))
answers.edit("whole", "w2_whole", (W2, '"w2": P()'), says="contains 1 all-reduce")
answers.edit("whole", "no_weight_split", (W1, '"w1": P()'), (B1, '"b1": P()'), (W2, '"w2": P()'))
answers.edit("whole", "no_data_parallelism", (X, '"x": P()'), (Y, '"y": P()'))
answers.edit(None, "both_by_rows", (W1, '"w1": P("tp")'), says="expected 1 all-reduce")
answers.edit(None, "output_by_features", (Y, '"y": P("dp", None, "tp")'), says="reduce")
answers.edit(None, "batch_over_both", (X, '"x": P(("dp", "tp"))'))
answers.edit(None, "as_in_fsdp", (W1, '"w1": P("dp", "tp")'), says="all-gather")
answers.edit(
    None,
    "bias_with_two_dimensions",
    (B2, '"b2": P(None, None)'),
    says="JAX cannot compile the program",
)
answers.edit(None, "output_left_out", (f"{Y},", ""), says="keys")
answers.edit("wrong_type", "specs_alone", (RETURN, "specs"))
answers.edit("returns_none", "nothing_returned", (f"return {RETURN}", RETURN))


def by_place(mesh):
    """Take the mesh's dimensions by their places."""
    dp, tp = mesh.axis_names[0], mesh.axis_names[-1]
    specs = {"x": P(dp), "w1": P(None, tp), "b1": P(tp), "w2": P(tp), "b2": P(), "y": P(dp)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


answers.wrong(None)(by_place)


@answers.wrong(None)
def own_mesh(mesh):
    own = make_mesh({"dp": 2, "tp": 2})
    specs = {"x": P("dp"), "w1": P(None, "tp"), "b1": P("tp"), "w2": P("tp"), "b2": P()}
    return {name: NamedSharding(own, spec) for name, spec in {**specs, "y": P("dp")}.items()}


@answers.wrong("not_refused")
def only_those_that_exist(mesh):
    dp, tp = (dim if dim in mesh.shape else None for dim in ("dp", "tp"))
    specs = {"x": P(dp), "w1": P(None, tp), "b1": P(tp), "w2": P(tp), "b2": P(), "y": P(dp)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


@answers.wrong(None, says="Raise a ValueError")
def key_error(mesh):
    assert mesh.shape["dp"] * mesh.shape["tp"] <= mesh.size
    return answers.reference()(mesh)


@answers.wrong(None, says="does not name `tp`")
def not_named(mesh):
    if not {"dp", "tp"} <= set(mesh.axis_names):
        raise ValueError("the mesh is wrong")
    return answers.reference()(mesh)


@answers.right
def tuples(mesh):
    batch, hidden = ("dp",), ("tp",)
    specs = {"y": P(batch), "x": P(batch), "b2": P(), "b1": P(hidden)}
    specs |= {"w1": P(None, hidden), "w2": P(hidden, None)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


@answers.right
def split_only_if_necessary(mesh):
    for name in ("dp", "tp"):
        if name not in mesh.axis_names:
            raise ValueError(f"no dimension {name}")
    dp, tp = (name if mesh.shape[name] > 1 else None for name in ("dp", "tp"))
    specs = {"x": P(dp), "w1": P(None, tp), "b1": P(tp), "w2": P(tp), "b2": P(), "y": P(dp)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


@answers.right
def the_same_mesh_again(mesh):
    types = (AxisType.Auto,) * mesh.devices.ndim
    again = Mesh(np.array(mesh.devices), mesh.axis_names, axis_types=types)
    return answers.reference()(again)
