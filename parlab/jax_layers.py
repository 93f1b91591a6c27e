"""Two layers in JAX, the mesh of devices for them, and the collectives of a compiled program.

A device of JAX is a GPU, a core of a TPU, or a CPU. This module sets up four devices that share the
process's CPU, even if there are GPUs. The compiler inserts the same collectives for both.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

try:
    import jax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "JAX is not installed here, and part D of lab 10 needs it. Run `pip install "
        "'jax>=0.10,<0.11'`, and restart the ranks. Or skip part D: nothing else depends on it",
        name="jax",
    ) from error

import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding

DEVICES = 4

# Both have an effect only before the first computation of the process.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)


def devices() -> list[jax.Device]:
    """Return the devices that this process controls."""
    return jax.devices()


def make_mesh(sizes: Mapping[str, int]) -> Mesh:
    """Arrange the first devices in a mesh: `make_mesh({"dp": 2, "tp": 2})`, outermost first.

    The compiler chooses the shardings of intermediate results (`AxisType.Auto`).

    Raises:
        ValueError: there are not enough devices.
    """
    count = math.prod(sizes.values())
    if count > DEVICES:
        raise ValueError(f"{dict(sizes)} needs {count} devices, but there are {DEVICES}")
    arranged = np.array(devices()[:count]).reshape(tuple(sizes.values()))
    return Mesh(arranged, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def mlp(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> jax.Array:
    """Return gelu(x · w1 + b1) · w2 + b2, where x is (batch, sequence, H), w1 (H, F), w2 (F, H)."""
    return jax.nn.gelu(x @ w1 + b1, approximate=False) @ w2 + b2


def attention(
    x: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array, wo: jax.Array
) -> jax.Array:
    """Return causal attention. Some query heads may share a head of keys and values.

    Args:
        x: (batch, sequence, H).
        wq: (H, heads, head size).
        wk, wv: (H, key and value heads, head size).
        wo: (heads, head size, H).
    """
    q, k, v = (jnp.einsum("bsh,had->bsad", x, weight) for weight in (wq, wk, wv))
    sharing = wq.shape[1] // wk.shape[1]
    k, v = jnp.repeat(k, sharing, axis=2), jnp.repeat(v, sharing, axis=2)
    scores = jnp.einsum("bsad,btad->bast", q, k) / math.sqrt(wq.shape[2])
    earlier = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bsad,adh->bsh", jnp.einsum("bast,btad->bsad", weights, v), wo)


def compile_sharded(
    function: Callable[..., jax.Array],
    arguments: Mapping[str, Any],
    shardings: Mapping[str, NamedSharding],
) -> jax.stages.Compiled:
    """Compile `function(*arguments)` for the devices of the shardings.

    Args:
        arguments: arrays or `jax.ShapeDtypeStruct`, by name, in the function's order.
        shardings: of each argument, by name, and of the result as "y".
    """
    jitted = jax.jit(
        function,
        in_shardings=tuple(shardings[name] for name in arguments),
        out_shardings=shardings["y"],
    )
    return jitted.lower(*arguments.values()).compile()


def compile_gradients(
    function: Callable[..., jax.Array],
    arguments: Mapping[str, Any],
    shardings: Mapping[str, NamedSharding],
) -> jax.stages.Compiled:
    """Compile the gradients of the sum of the squares of `function(*arguments)`.

    There is a gradient for each argument, and it is sharded like the argument. For the arguments,
    see `compile_sharded`.
    """

    def loss(*arrays: jax.Array) -> jax.Array:
        y = jax.lax.with_sharding_constraint(function(*arrays), shardings["y"])
        return (y**2).sum()

    same = tuple(shardings[name] for name in arguments)
    gradients = jax.grad(loss, argnums=tuple(range(len(same))))
    jitted = jax.jit(gradients, in_shardings=same, out_shardings=same)
    return jitted.lower(*arguments.values()).compile()


def parts(sharding: NamedSharding, shape: tuple[int, ...]) -> list[list[list[int]]]:
    """Return the part of an array that each device of the mesh holds, in the mesh's order.

    A part is a list of [start, stop], one for each dimension of the array.
    """
    held = sharding.devices_indices_map(shape)
    return [
        [list(one.indices(size)[:2]) for one, size in zip(held[device], shape, strict=True)]
        for device in sharding.mesh.devices.flat
    ]


def random_arrays(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Draw float32 arrays of these sizes, the same in each call."""
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(size, np.float32) / 4 for name, size in sizes.items()}


def shapes(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
    """Describe float32 arrays of these sizes to the compiler, without numbers."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in sizes.items()}


class Collective(NamedTuple):
    """A collective of a compiled program."""

    operation: str  # such as "all-reduce"
    shape: str  # of what a device gets, such as "f32[4,16]"
    groups: list[list[int]]  # of devices that communicate with each other; [] if it has none

    def __str__(self) -> str:
        groups = " and ".join(map(str, self.groups))
        return f"{self.operation} of {self.shape}" + (f" over devices {groups}" if groups else "")


OPERATIONS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (\([^)]*\)|\S+) ({OPERATIONS})(?:-start)?\((.*)")
_ORDER = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"  # `[2,2]T(1,0)`: 0 … 3 as rows, and then transposed
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_COUNTED = re.compile(rf"replica_groups=\[([\d,]+)\]<={_ORDER}")
_OF_MESH = re.compile(rf"replica_groups=mesh\[([^]]*)\](?:, device_ids=\({_ORDER}\))? \{{(.*?)\}}")


def collectives(program: jax.stages.Compiled) -> list[Collective]:
    """Find the collectives in the text of a compiled program, in its order."""
    return [
        Collective(operation, re.sub(r"\{[^}]*\}", "", shape), _groups(rest))
        for shape, operation, rest in _COLLECTIVE.findall(program.as_text())
    ]


def _groups(text: str) -> list[list[int]]:
    """Read the groups 0, 2 and 1, 3 in one of three forms.

    `{{0,2},{1,3}}`, or `[2,2]<=[2,2]T(1,0)` (two groups of two, in an order), or
    `mesh['a'=2,'b'=2] {'a'}` (members differ only in `a`), perhaps with an order of the devices.
    """
    if listed := _LISTED.search(text):
        return [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", listed[1])]
    if counted := _COUNTED.search(text):
        shape, *order = counted.groups()
        return _ordered(*order).reshape(_numbers(shape)).tolist()
    if of_mesh := _OF_MESH.search(text):
        mesh, *order, inside = of_mesh.groups()
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
        axes = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", inside)]
        devices = _ordered(*order) if order[0] else np.arange(math.prod(sizes.values()))
        devices = np.moveaxis(devices.reshape(tuple(sizes.values())), axes, range(-len(axes), 0))
        return devices.reshape(-1, math.prod(devices.shape[-len(axes) :])).tolist()
    return []


def _ordered(shape: str, order: str | None) -> np.ndarray:
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return numbers.transpose(_numbers(order)) if order else numbers


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def count_operations(program: jax.stages.Compiled) -> dict[str, int]:
    """Count a program's collectives, by operation: `{"all-reduce": 1}`."""
    names = sorted(one.operation for one in collectives(program))
    return {name: len(list(same)) for name, same in itertools.groupby(names)}
