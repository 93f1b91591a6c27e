"""Requirements on the parts of arrays, and on the collectives that the compiler inserts for them.

JAX is imported inside the functions, so that only the rank that compiles imports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial

if TYPE_CHECKING:
    from jax.sharding import Mesh

# The dimension of the mesh over which each dimension of an array is split.
Specs = Mapping[str, tuple[str | None, ...]]
Parts = list[list[list[int]]]  # of each device, for each dimension: start and stop
Placed = dict[str, Any]  # the parts of each array, by its name

WHOLE = (
    "each device holds all of `{name}`, and should hold one part of it. The result is right, and "
    "so may be the number of collectives, but memory is wasted"
)


@dataclass(frozen=True)
class Case:
    """A layer to compile on a mesh.

    Attributes:
        mesh: its dimensions and their sizes.
        layer: the name of its function in `parlab.jax_layers`.
        shapes: the shapes of the arguments, by name, in order.
        right: how each array must be split, including "y".
        wrong: how a mistake splits them, by its key, unless it is limited to one array.
    """

    mesh: Mapping[str, int]
    layer: str
    shapes: Mapping[str, tuple[int, ...]]
    right: Specs
    wrong: Mapping[str, Specs]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an argument, or of the result."""
        return self.shapes["x" if name == "y" else name]


def mesh_of(sizes: Mapping[str, int]) -> "Mesh":
    """Return a mesh of devices."""
    from parlab import jax_layers

    return jax_layers.make_mesh(sizes)


def require_shardings(trial: Trial, mesh: Any, got: Any, case: Case, mistakes: Mistakes) -> None:
    """Require shardings whose program has the right collectives, and the right parts."""
    trial.require(
        lambda: _form(got, case, mesh),
        lambda: _judged(got, case, mesh, mistakes),
    )


def require_named_dimensions(trial: Trial, *rest: Any) -> None:
    """Require that the function refuses a mesh that lacks a dimension, and names the dimension."""
    trial.situation = ""  # each message names the refused mesh
    for sizes, lacks in (({"dp": 2, "cp": 2}, "tp"), ({"tp": 4}, "dp")):
        what = f"a mesh with only {' and '.join(map(repr, sizes))}"
        require_refusals(trial, {what: (mesh_of(sizes), *rest)}, lacks)


def _form(got: Any, case: Case, mesh: Any) -> Finding | None:
    from jax.sharding import NamedSharding

    if found := has_type(got, dict, "a dictionary of shardings"):
        return found
    if got.keys() != case.right.keys():
        return observed(f"its keys are {sorted(got)}, expected {sorted(case.right)}")
    for name, sharding in got.items():
        if found := has_type(sharding, NamedSharding, "a NamedSharding", f"`{name}`"):
            return found
        if sharding.mesh != mesh:
            return observed(f"the sharding of `{name}` is for another mesh than the argument")
    return None


def _judged(got: Any, case: Case, mesh: Any, mistakes: Mistakes) -> Finding | None:
    right = _placed(case, case.right, mesh)
    held = _held(case, got)
    for name, parts in held.items():
        if parts is None:
            shape, spec = case.shape(name), got[name].spec
            return observed(f"`{spec}` cannot split `{name}`, of shape {shape}, into equal parts")
    program, inserted = _compiled(got, case)
    if (finding := _named(held, right, case, mesh, mistakes)) is not None:
        return Finding(f"{finding.text}. {program}", finding.mistake)
    expected = {"all-reduce": 1} if case.mesh["tp"] > 1 else {}
    difference = _difference(held, right)
    if inserted is None:
        return observed(program)
    if inserted != expected:
        return observed(f"{program}, expected {_counted(expected)}. {difference}")
    return observed(f"{difference}. {program}") if difference else None


def _held(case: Case, shardings: Mapping[str, Any]) -> Placed:
    """Return the parts of each array, or None for an array that the sharding cannot split."""
    from parlab import jax_layers

    def parts(name: str) -> Parts | None:
        try:
            return jax_layers.parts(shardings[name], case.shape(name))
        except ValueError:
            return None

    return {name: parts(name) for name in case.right}


def _placed(case: Case, specs: Specs, mesh: Any) -> Placed:
    from jax.sharding import NamedSharding, PartitionSpec

    return _held(case, {n: NamedSharding(mesh, PartitionSpec(*s)) for n, s in specs.items()})


def _difference(held: Placed, right: Placed) -> str:
    """Describe where an array is not split as expected; return "" if all are."""
    for name, parts in held.items():
        for device, (one, other) in enumerate(zip(parts, right[name], strict=True)):
            if one != other:
                text = f"Device {device} holds `{name}[{_slices(one)}]`"
                return f"{text}, expected `{name}[{_slices(other)}]`"
    return ""


def _slices(part: list[list[int]]) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in part)


def _compiled(got: Any, case: Case) -> tuple[str, dict[str, int] | None]:
    """Compile the layer. Return the program's collectives, in words and as counts."""
    from parlab import jax_layers

    layer = getattr(jax_layers, case.layer)
    try:
        program = jax_layers.compile_sharded(layer, jax_layers.shapes(case.shapes), got)
    except ValueError as error:
        return f"JAX cannot compile the program: {error}", None
    inserted = jax_layers.count_operations(program)
    return f"The compiled program contains {_counted(inserted)}", inserted


def _counted(operations: Mapping[str, int]) -> str:
    """Write `{"all-reduce": 2}` as "2 all-reduces"."""
    listed = [f"{n} {name}{'s' * (n > 1)}" for name, n in operations.items()]
    return " and ".join(listed) or "no collective"


def _named(
    held: Placed, right: Placed, case: Case, mesh: Any, mistakes: Mistakes
) -> Finding | None:
    wrong = {key: _placed(case, specs, mesh) for key, specs in case.wrong.items()}
    if mistake := the_only(mistakes, (key for key in wrong if held == wrong[key] != right)):
        return mistake
    whole = _placed(case, dict.fromkeys(case.right, ()), mesh)
    for name, parts in held.items():
        if parts == whole[name] != right[name]:
            return mistakes.whole(name=name)
    return None
