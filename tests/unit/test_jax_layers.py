"""The collectives in the text of JAX's compiler, and lab 10 where JAX is missing."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from parlab import jax_layers
from parlab.runtime.paths import ROOT

SHAPES = {"x": (4, 2, 8), "w1": (8, 16), "b1": (16,), "w2": (16, 8), "b2": (8,)}
SPECS = {"x": P("dp"), "w1": P(None, "tp"), "b1": P("tp"), "w2": P("tp"), "b2": P(), "y": P("dp")}


@pytest.mark.parametrize(
    "sizes",
    [
        {"dp": 2, "tp": 2},
        {"tp": 2, "dp": 2},
        {"dp": 1, "tp": 4},
        {"tp": 2, "cp": 2, "dp": 1},
        {"cp": 2, "tp": 2, "dp": 1},
    ],
    ids=str,
)
def test_groups_are_the_devices_that_differ_in_one_dimension(sizes: dict[str, int]) -> None:
    mesh = jax_layers.make_mesh(sizes)
    numbers = np.arange(4).reshape(tuple(sizes.values()))

    def groups(dim: str) -> list[list[int]]:
        axis = list(sizes).index(dim)
        return np.moveaxis(numbers, axis, -1).reshape(-1, sizes[dim]).tolist()

    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    layer = jax_layers.mlp, jax_layers.shapes(SHAPES), shardings
    (one,) = jax_layers.collectives(jax_layers.compile_sharded(*layer))
    assert (one.operation, sorted(one.groups)) == ("all-reduce", sorted(groups("tp")))
    backward = jax_layers.collectives(jax_layers.compile_gradients(*layer))
    dims = ["tp", "tp"] + ["dp"] * (sizes["dp"] > 1)
    assert {one.operation for one in backward} == {"all-reduce"}
    assert sorted(sorted(one.groups) for one in backward) == sorted(sorted(groups(d)) for d in dims)


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,2},{1,3}}",
        "[2,2]<=[2,2]T(1,0)",
        "mesh['a'=2,'b'=2] {'a'}",
        "mesh['a'=2,'b'=1,'c'=2], device_ids=([2,2]T(1,0)) {'c'}",
    ],
)
def test_the_text_is_read_in_each_form(groups: str) -> None:
    start = "%a = (f32[4]{0}, f32[2,3]{1,0}) all-reduce-start(%b, %c), channel_id=1"
    text = f"  {start}, replica_groups={groups}, to_apply=%add\n  %d = f32[2]{{0}} add(%e, %f)"
    program = SimpleNamespace(as_text=lambda: text)
    expected = ("all-reduce", "(f32[4], f32[2,3])", [[0, 2], [1, 3]])
    assert jax_layers.collectives(program) == [expected]
    shown = "all-reduce of (f32[4], f32[2,3]) over devices [0, 2] and [1, 3]"
    assert [str(one) for one in jax_layers.collectives(program)] == [shown]
    assert jax_layers.count_operations(program) == {"all-reduce": 1}


def test_too_large_meshes_are_refused() -> None:
    with pytest.raises(ValueError, match="8 devices"):
        jax_layers.make_mesh({"dp": 2, "tp": 4})


def test_without_jax_only_part_d_fails_and_says_why() -> None:
    """The lab's first cells import the checks. `None` makes Python find no module."""
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from parlab.checks import composing\n"
        "from parlab import jax_layers\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1
    assert 'File "<string>", line 3' in ran.stderr  # the checks were imported
    assert "JAX is not installed here, and part D of lab 10 needs it" in ran.stderr
