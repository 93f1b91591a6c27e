"""Exercise `attention_shardings`."""

from collections.abc import Mapping

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.refusals import require_refusals
from parlab.checks.composing import _shardings
from parlab.checks.composing._shardings import Case, Specs

MISTAKES = Mistakes(
    head_size_split=(
        "the head size is split, so the scores are sums over several devices. Split the heads"
    ),
    outputs_split=(
        "wo is split along its outputs, so it needs the results of all heads. Split its first "
        "dimension, the heads"
    ),
    whole=_shardings.WHOLE,
)
HIDDEN, HEAD_SIZE = 8, 4
# The mesh, the number of heads, and the number of heads of keys and values.
CASES = (
    ({"dp": 2, "tp": 2}, 8, 8),
    ({"tp": 2, "dp": 2}, 6, 2),
    ({"dp": 1, "tp": 4}, 8, 2),
    ({"dp": 1, "tp": 4}, 12, 6),
    ({"dp": 2, "tp": 2}, 4, 1),
    ({"dp": 4, "tp": 1}, 3, 1),
    ({"tp": 2, "cp": 2, "dp": 1}, 4, 2),
)
REFUSED = (({"dp": 1, "tp": 4}, 6, 2), ({"tp": 2, "dp": 2}, 3, 1))


def specs(tp: int, kv_heads: int) -> dict[str, tuple[str | None, ...]]:
    """Return the right specs."""
    keys = (None, "tp") if kv_heads % tp == 0 else ()
    return {"x": ("dp",), "wq": (None, "tp"), "wk": keys, "wv": keys, "wo": ("tp",), "y": ("dp",)}


def wrong_specs(right: Specs) -> Mapping[str, Specs]:
    """Return the specs that mistakes use."""
    by_size = dict.fromkeys(("wq", "wk", "wv"), (None, None, "tp"))
    return {
        "head_size_split": {**right, **by_size, "wo": (None, "tp")},
        "outputs_split": {**right, "wo": (None, None, "tp")},
    }


@check_of(MISTAKES, ranks=1)
def attention_shardings(check: Check) -> str:
    """Check the compiled layer, and what each device holds, on meshes of four devices."""
    with check.trial() as trial:
        for sizes, heads, kv_heads in CASES:
            trial.situation = f"mesh {sizes}, heads={heads}, kv_heads={kv_heads}"
            mesh = _shardings.mesh_of(sizes)
            got = trial.run(mesh, heads, kv_heads)
            right = specs(sizes["tp"], kv_heads)
            keys = HIDDEN, kv_heads, HEAD_SIZE
            shapes = {"x": (8, 4, HIDDEN), "wq": (HIDDEN, heads, HEAD_SIZE), "wk": keys, "wv": keys}
            shapes |= {"wo": (heads, HEAD_SIZE, HIDDEN)}
            case = Case(sizes, "attention", shapes, right, wrong_specs(right))
            _shardings.require_shardings(trial, mesh, got, case, MISTAKES)
        for sizes, heads, kv_heads in REFUSED:
            trial.situation = f"mesh {sizes}, kv_heads={kv_heads}"
            call = {f"heads={heads}": (_shardings.mesh_of(sizes), heads, kv_heads)}
            require_refusals(trial, call, "heads")
        trial.situation = "heads=8, kv_heads=4"
        _shardings.require_named_dimensions(trial, 8, 4)
    return f"one all-reduce, and the right parts on each device, in {len(CASES)} cases"
