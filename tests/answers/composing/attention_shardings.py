"""Answers to `attention_shardings`."""

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from parlab.jax_layers import make_mesh
from parlab_staff.answers import Answers

answers = Answers("attention_shardings")

WQ, WO = '"wq": P(None, "tp")', '"wo": P("tp")'
KEYS = 'P() if kv_heads % tp else P(None, "tp")'
DIMS, HEADS = "if dim not in mesh.shape", "if heads % tp"
RETURN = "{name: NamedSharding(mesh, spec) for name, spec in specs.items()}"

SIZE, INPUTS = 'P(None, None, "tp")', 'P("tp")'
answers.edit(
    "head_size_split",
    "by_head_size",
    (WQ, f'"wq": {SIZE}'),
    (KEYS, SIZE),
    (WO, '"wo": P(None, "tp")'),
)
answers.edit("outputs_split", "out_by_columns", (WO, '"wo": P(None, None, "tp")'))
answers.edit("whole", "keys_always_whole", (KEYS, "P()"), says="contains 1 all-reduce")
answers.edit("raises", "heads_over_all_devices", (HEADS, "if heads % mesh.size"))
answers.edit("whole", "out_whole", (WO, '"wo": P()'))
answers.edit("whole", "batch_whole", ('"x": P("dp")', '"x": P()'))
answers.edit("not_refused", "any_heads", (HEADS, "if False"))
answers.edit(None, "keys_always_split", (KEYS, 'P(None, "tp")'), says="equal parts")
answers.edit(
    None, "keys_whole_if_few", (KEYS, 'P() if kv_heads < tp else P(None, "tp")'), says="equal parts"
)
answers.edit("raises", "keys_refused", (HEADS, "if heads % tp or kv_heads % tp"))
answers.edit(None, "key_error", (DIMS, "if False"), says="Raise a ValueError")
answers.edit(None, "output_by_features", ('"y": P("dp")', '"y": P("dp", None, "tp")'))
answers.edit(None, "only_queries_named", (" {heads} heads", " {heads}"), says="`heads`")
answers.edit(
    None, "which_dimension", ("the mesh has no dimension {dim!r}", "no dimension"), says="`tp`"
)
answers.edit("wrong_type", "specs_alone", (RETURN, "specs"))
answers.edit(None, "one_key_too_many", ('"x": P("dp")', '"x": P("dp"), "b": P()'), says="keys")


@answers.wrong(None)
def own_mesh(mesh, heads, kv_heads):
    return answers.reference()(make_mesh({"dp": 2, "tp": 2}), heads, kv_heads)


@answers.wrong("not_refused")
def missing_is_one(mesh, heads, kv_heads):
    dp, tp = (dim if dim in mesh.shape else None for dim in ("dp", "tp"))
    if heads % mesh.shape.get("tp", 1):
        raise ValueError("heads")
    keys = P() if kv_heads % mesh.shape.get("tp", 1) else P(None, tp)
    specs = {"x": P(dp), "wq": P(None, tp), "wk": keys, "wv": keys, "wo": P(tp), "y": P(dp)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


@answers.right
def every_dimension(mesh, heads, kv_heads):
    if "tp" not in mesh.shape or "dp" not in mesh.shape:
        raise ValueError('the mesh needs "dp" and "tp"')
    if heads % mesh.shape["tp"] != 0:
        raise ValueError(f"heads={heads}")
    split, whole = P(None, "tp", None), P(None, None, None)
    specs = {"x": P("dp", None, None), "wq": split, "wo": P("tp", None, None)}
    specs["wk"] = specs["wv"] = split if kv_heads % mesh.shape["tp"] == 0 else whole
    specs["y"] = specs["x"]
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


@answers.right
def jax_refuses(mesh, heads, kv_heads):
    """JAX names the missing dimension."""
    batch, out = NamedSharding(mesh, P("dp")), NamedSharding(mesh, P("tp"))
    split, ways = NamedSharding(mesh, P(None, "tp")), mesh.shape["tp"]
    if heads % ways:
        raise ValueError(f"tp={ways} does not divide the number of heads")
    keys = NamedSharding(mesh, P()) if kv_heads % ways else split
    return {"x": batch, "wq": split, "wk": keys, "wv": keys, "wo": out, "y": batch}


@answers.right
def split_only_if_necessary(mesh, heads, kv_heads):
    reference = answers.reference()(mesh, heads, kv_heads)
    small = {name for name, size in mesh.shape.items() if size == 1}
    return {
        name: NamedSharding(mesh, P(*(None if dim in small else dim for dim in sharding.spec)))
        for name, sharding in reference.items()
    }
