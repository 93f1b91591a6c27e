"""One call of a learner's function with guarded buffers, and requirements on its kernels."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError

from parlab.checks.base.compare import as_numpy, first_difference, has_type
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed, the_only
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.trial import Trial
from parlab.kernels.accesses import Accesses, Outside, recorded
from parlab.kernels.buffers import Arena
from parlab.kernels.errors import cause_of
from parlab.kernels.launches import Launch, launches

SECONDS = 60.0  # the interpreter is slow, and ranks share cores
# Half a gap, since a 16-bit number is rounded once, and a little for float32's own errors.
ROUNDED = {torch.float16: 1.05 * 2.0**-11, torch.bfloat16: 1.05 * 2.0**-8}

KERNEL = Mistakes(
    outside=(
        "{access}. On a GPU, this may end the program or change other data. Check the strides and "
        "`mask=`, so that the kernel loads and stores only elements that exist"
    ),
    no_launch="the function launches no kernel. Launch one with `kernel[grid](…)`",
    several_launches="the function makes {count} launches, expected one: {kernels}",
    not_by_kernel="no kernel stores {count} of the {size} elements of {name}",
)
MASKED = Mistakes(
    undefined_numbers=(
        "the result contains NaN, perhaps because a masked load without `other=` leaves elements "
        "undefined (NaN in this check). Choose a value that does not change the result"
    ),
)


@dataclass
class KernelCall:
    """The record of one call on this rank.

    Attributes:
        arena: the guarded buffers of the arguments; `before` is their memory before the call.
        result: the function's result.
        launches, accesses: the launches and memory accesses of its kernels.
    """

    arena: Arena
    before: list[Tensor]
    result: Any = None
    launches: list[Launch] = field(default_factory=list)
    accesses: Accesses = field(default_factory=Accesses)


def run(
    trial: Trial, arena: Arena, *arguments: Any, function: Callable | None = None
) -> KernelCall:
    """Call `function`, or the learner's, on the trial's ranks, and watch its kernels.

    If a kernel raises, report its exception instead of the interpreter's or the compiler's.
    """
    call = KernelCall(arena, [buffer.whole.clone() for buffer in arena.buffers])
    called = function or trial.check.function

    def watched() -> Any:
        with launches() as call.launches, recorded(arena) as call.accesses, filled_with_nan():
            try:
                return called(*arguments)
            except (InterpreterError, CompilationError) as error:
                raise cause_of(error) from None

    call.result = trial.run_function(watched, seconds=SECONDS)
    return call


def numbers(trial: Trial, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw normal numbers, or integers of two digits, on the CPU. They differ between ranks."""
    seed = trial.draw.getrandbits(32) + max(trial.rank, 0)
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-99, 100, shape, generator=generator).to(dtype)


def named(template: str, table: Iterable[tuple]) -> dict[str, tuple]:
    """Return the rows of a table by name. The template has places for the row's values."""
    return {template.format(*row): row for row in table}


# Requirements on launches and accesses. On a GPU, accesses are not known.


def one_launch_inside(call: KernelCall, *kept: str) -> Finding | None:
    """Require one launch that accesses only elements of tensors, and leaves `kept` unchanged."""
    if finding := inside(call):
        return finding
    if not call.launches:
        return KERNEL.no_launch()
    if len(call.launches) > 1:
        kernels = ", ".join(sorted({launch.kernel for launch in call.launches}))
        return KERNEL.several_launches(count=len(call.launches), kernels=kernels)
    return first(argument_kept(call, name) for name in kept)


def argument_kept(call: KernelCall, name: str) -> Finding | None:
    """Require that buffers whose name begins with `name` are unchanged."""
    for buffer, before in zip(call.arena.buffers, call.before, strict=True):
        if buffer.name.startswith(name) and not alike(buffer.whole, before):
            return COMMON.argument_changed(name=f"`{buffer.name}`")
    return None


def alike(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def inside(call: KernelCall) -> Finding | None:
    """Require that kernels access only elements of tensors."""
    if call.accesses.outside is not None:
        return _outside(call.arena, call.accesses.outside)
    if overwritten := call.arena.overwritten():
        name, distance = overwritten
        return observed(
            f"a kernel overwrites memory outside of `{name}`, {_elements(distance)} from its "
            "first element. Use `mask=` to store only elements that exist"
        )
    return None


def _outside(arena: Arena, outside: Outside) -> Finding:
    buffer = next((b for b in arena.buffers if b.name == outside.buffer), None)
    verb = "stores" if outside.stores else "loads"
    if buffer is not None and buffer.view.element_size() != outside.element_bytes:
        dtype = str(buffer.view.dtype).removeprefix("torch.")
        return observed(
            f"a kernel {verb} elements of {outside.element_bytes} bytes in `{buffer.name}`, whose "
            f"elements have {buffer.view.element_size()}: use a pointer to {dtype}, its dtype"
        )
    program = ", ".join(map(str, outside.program)).removesuffix(", 0").removesuffix(", 0")
    place = "at addresses that belong to no tensor"
    if buffer is not None:
        place = f"not part of `{buffer.name}`, which has {_elements(buffer.view.numel())}. "
        place += f"The first is {_elements(outside.distance)} from its beginning"
    access = f"program {program} {verb} {_elements(outside.count)} {place}"
    return KERNEL.outside(access=access)


def _elements(count: int) -> str:
    return f"{count} element" if abs(count) == 1 else f"{count} elements"


def all_stored(call: KernelCall, tensor: Tensor, name: str) -> Finding | None:
    """Require that kernels store each element."""
    count = int((~call.accesses.stored_in(tensor)).sum())
    if call.accesses.known and count:
        return KERNEL.not_by_kernel(count=count, size=tensor.numel(), name=name)
    return None


def by_kernel(call: KernelCall, tensor: Tensor, name: str, once: bool = True) -> Finding | None:
    """Require that one program stores each element, once if `once`, and that nothing changes it."""
    if finding := all_stored(call, tensor, name):
        return finding
    if not call.accesses.known:
        return None
    size = tensor.numel()
    if count := int((~call.accesses.kept(tensor)).sum()):
        return observed(
            f"{count} of {size} elements of {name} change after a kernel has stored them: do all "
            "work in the kernel"
        )
    if count := call.accesses.stored_twice():
        return observed(
            f"more than one program stores {_elements(count)}. Programs run in any order, so each "
            "needs its own elements"
        )
    count = call.accesses.times_stored(tensor)
    text = f"a kernel stores {count} elements in {name}, which has {size}: store each element once"
    return unless(count <= size or not once, text)


def loads_at_most(call: KernelCall, right: int, slack: float = 0) -> Finding | None:
    """Require that kernels load no more than `right` bytes plus `slack`."""
    got = call.accesses.loaded
    return unless(
        got <= right + slack,
        f"the kernel loads {got:,} bytes, expected {right:,}: avoid needless loads",
    )


# Comparisons


def unless(is_right: bool, text: str) -> Finding | None:
    return None if is_right else observed(text)


def first(findings: Iterable[Finding | None]) -> Finding | None:
    """Return the first finding, or None."""
    return next(filter(None, findings), None)


def result_is(
    call: KernelCall,
    dtype: torch.dtype,
    right: Tensor,
    compare: Callable[[], Finding | None],
    once: bool = True,
) -> Finding | None:
    """Require a tensor of this dtype and the shape of `right`, whose elements a kernel stores.

    `compare` compares its numbers. If `once`, kernels must store each element only once.
    """
    if finding := is_tensor(call.result, right.shape, dtype) or all_stored(
        call, call.result, "the result"
    ):
        return finding
    if call.accesses.undefined and (call.result.isnan().cpu() & ~right.isnan()).any():
        return MASKED.undefined_numbers()
    return compare() or by_kernel(call, call.result, "the result", once)


def is_tensor(got: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Finding | None:
    if finding := has_type(got, Tensor, "a torch.Tensor"):
        return finding
    if got.shape != shape:
        return COMMON.wrong_shape(name="the result", got=tuple(got.shape), right=tuple(shape))
    if got.dtype != dtype:
        return COMMON.wrong_dtype(name="the result", got=got.dtype, right=dtype)
    return None


def loads_all(call: KernelCall, tensor: Tensor, name: str) -> Finding | None:
    """Require that the kernel itself loads each element of an argument."""
    count = int((~call.accesses.loaded_from(tensor)).sum())
    return unless(
        not call.accesses.known or not count,
        f"the kernel does not load {count} of the {tensor.numel()} elements of {name}. Do not copy "
        "or convert it before the launch",
    )


def one_program_each(call: KernelCall, right: int, what: str) -> Finding | None:
    """Require one program for each part of the work, such as "tiles"."""
    got = call.launches[0].programs
    return unless(got == right, f"{got} programs for {right} {what}: launch one for each")


def near(
    got: Tensor, right: Tensor, name: str, relative: float, absolute: float = 1e-7
) -> Finding | None:
    """Require that all numbers are within the sum of both tolerances. NaN never is."""
    return first_difference(as_numpy(got), as_numpy(right), name, relative, absolute)


def result_near(
    got: Tensor,
    right: Tensor,
    relative: float,
    variants: Mapping[str, Tensor],
    mistakes: Mistakes,
    absolute: float = 1e-7,
) -> Finding | None:
    """Compare a result, using `explained`. `relative` is the tolerance for float32."""
    name = "the result" + " (computed in float32, rounded once)" * (got.dtype in ROUNDED)
    relative = ROUNDED.get(got.dtype, relative)
    return explained(
        lambda one: near(got, one, name, relative, absolute), right, variants, mistakes
    )


def explained(
    compare: Callable[[Any], Finding | None],
    right: Any,
    variants: Mapping[str, Any],
    mistakes: Mistakes,
) -> Finding | None:
    """Return None if `compare(right)` does, or else the mistake that computes the same result.

    Args:
        compare: compares the learner's result with its argument.
        variants: what each mistake computes, by its key in `mistakes`. If several mistakes compute
            the learner's result, or none does, return what `compare(right)` found.
    """
    difference = compare(right)
    if difference is None:
        return None
    found = the_only(mistakes, (key for key, value in variants.items() if compare(value) is None))
    return found or difference
