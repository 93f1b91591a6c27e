"""A learner's call with guarded buffers: what it launched, loaded and stored."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import InterpreterError

from parlab.checks.compare import is_a
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.uninitialized import filled_with_nan
from parlab.kernels.accesses import Accesses, Outside, recorded
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import Launch, launches

SECONDS = 60.0  # the interpreter is slow, and ranks share cores

KERNEL = Mistakes(
    loads_outside=(
        "{where}: what it gets there is not the tensor's, and on a GPU such a load may end the "
        "program. A `mask` keeps a load to what is there"
    ),
    stores_outside=(
        "{where}: that overwrites the memory of somebody else. A `mask` keeps a store to what is "
        "there"
    ),
    no_launch="no kernel is launched: `kernel[grid](…)` launches one",
    several_launches="{got} launches where one is asked for: {kernels}",
    not_by_kernel=(
        "{count} of {size} elements of {name} were never stored by a kernel: whatever stands there "
        "comes from elsewhere"
    ),
)


UNDEFINED = Mistakes(
    undefined_numbers=(
        "numbers that a mask leaves out are in the result: without `other=`, what a load gives "
        "there is undefined, and here it is NaN. Choose one that does nothing"
    ),
)


@dataclass
class Run:
    """What came of one call on this rank."""

    arena: Arena
    result: Any = None
    made: list[Launch] | None = None
    before: list[Tensor] | None = None  # the arena's memory at the call
    seen: Accesses | None = None


def run(trial: Trial, arena: Arena, *arguments: Any, function: Callable | None = None) -> Run:
    """The learner's function on the trial's ranks, its kernels watched.

    A kernel's own exception is told, instead of the interpreter's that has it in it.
    """
    done = Run(arena, before=[buffer.whole.clone() for buffer in arena.buffers])
    called = function or trial.check.function

    def watched() -> Any:
        with launches() as made, recorded(arena) as seen, filled_with_nan():
            done.made, done.seen = made, seen
            try:
                return called(*arguments)
            except InterpreterError as error:
                raise _cause(error) from None

    done.result = trial.run_function(watched, seconds=SECONDS)
    return done


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def inside(done: Run) -> Finding | None:
    """Whether kernels kept to the tensors that they were given."""
    outside = done.seen.outside
    if outside is not None:
        where = _told(done.arena, outside)
        return (KERNEL.stores_outside if outside.stores else KERNEL.loads_outside)(where=where)
    if found := done.arena.overwritten():
        name, distance = found
        return evidence(
            f"a kernel has overwritten memory around `{name}`, {distance} elements from its "
            "beginning: a `mask` keeps a store to what is there"
        )
    return None


def _told(arena: Arena, outside: Outside) -> str:
    program = outside.program
    while len(program) > 1 and not program[-1]:
        program = program[:-1]
    who = "program " + ", ".join(map(str, program))
    does = "stores" if outside.stores else "loads"
    many = f"{outside.count} element" + "s" * (outside.count > 1)
    if outside.buffer is None:
        return f"{who} {does} {many} at addresses that belong to no tensor"
    buffer = next(b for b in arena.buffers if b.name == outside.buffer)
    return (
        f"{who} {does} {many} outside of `{outside.buffer}`, the first at {outside.distance} "
        f"elements from its beginning, where it has {buffer.view.numel()}"
    )


def defined(done: Run, right: Tensor) -> Finding | None:
    """Whether the result, of the form that is right, has nothing of what no load has defined."""
    spoilt = done.result.isnan().cpu() & ~right.isnan()
    return UNDEFINED.undefined_numbers() if done.seen.undefined and spoilt.any() else None


def one_launch(done: Run) -> Finding | None:
    if not done.made:
        return KERNEL.no_launch()
    if len(done.made) > 1:
        names = ", ".join(sorted({launch.kernel for launch in done.made}))
        return KERNEL.several_launches(got=len(done.made), kernels=names)
    return None


def all_written(done: Run, tensor: Tensor, name: str) -> Finding | None:
    """Whether kernels have written each element."""
    if done.seen.known and (count := int((~done.seen.stored_in(tensor)).sum())):
        return KERNEL.not_by_kernel(count=count, size=tensor.numel(), name=name)
    return None


def by_kernel(done: Run, tensor: Tensor, name: str) -> Finding | None:
    """Whether kernels have written each element, by one program each."""
    if found := all_written(done, tensor, name):
        return found
    if not done.seen.known:
        return None
    if count := int((~done.seen.kept(tensor)).sum()):
        return evidence(
            f"{count} of {tensor.numel()} elements of {name} are not what a kernel stored there: "
            "something else has changed them after it"
        )
    if count := done.seen.stored_twice():
        return evidence(
            f"{count} elements are stored by more than one program: programs run in any order, and "
            "each has elements of its own"
        )
    return None


def once_stored(done: Run, tensor: Tensor, name: str) -> Finding | None:
    """Whether no element is stored twice, by one program either."""
    count, right = done.seen.times_stored(tensor), tensor.numel()
    if done.seen.known and count > right:
        return evidence(f"{count} numbers are stored in {name}, which has {right}: once each")
    return None


def as_passed(done: Run) -> Finding | None:
    """Whether nothing had changed an argument before the first kernel began."""
    for buffer, before, then in zip(
        done.arena.buffers, done.before, done.seen.first_launch, strict=False
    ):
        if not torch.equal(before.nan_to_num(), then.nan_to_num()):
            return evidence(
                f"`{buffer.name}` is no longer what the caller passed when the kernel begins: the "
                "kernel does all of it"
            )
    return None


def warm() -> None:
    """A step of an optimizer: torch imports much at the first, and a call's seconds are counted."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()


def is_tensor(got: Any, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> Finding | None:
    """Whether it is a tensor of this shape and dtype."""
    if found := is_a(got, Tensor, "a torch.Tensor", name):
        return found
    if tuple(got.shape) != tuple(shape):
        return COMMON.wrong_shape(name=name, got=tuple(got.shape), right=tuple(shape))
    if got.dtype != dtype:
        return COMMON.wrong_dtype(name=name, got=got.dtype, right=dtype)
    return None


def is_near(got: Tensor, right: Tensor, relative: float, absolute: float = 1e-7) -> bool:
    """Whether all numbers are within both tolerances together; NaN never is."""
    got, right = got.detach().double().cpu(), right.double().cpu()
    return bool(((got - right).abs() <= relative * right.abs() + absolute).all())


def near(
    got: Tensor, right: Tensor, name: str, relative: float, absolute: float = 1e-7
) -> Finding | None:
    """The first number that is not."""
    got, right = got.detach().double().cpu(), right.double().cpu()
    wrong = ~((got - right).abs() <= relative * right.abs() + absolute)
    if not wrong.any():
        return None
    index = tuple(wrong.nonzero()[0].tolist())
    at = index[0] if len(index) == 1 else index
    where = f"{name} at index {at}" if index else name
    one, other = got[index].item(), right[index].item()
    if not math.isfinite(one):
        return COMMON.not_a_number(name=name, index=at, got=one, right=f"{other:.6g}")
    count = int(wrong.sum())
    return evidence(
        f"{where} is {one:.6g} where {other:.6g} is right ({count} of {right.numel()} differ)"
    )


def numbers(trial: Trial, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random normal numbers (integers: of two digits), others on each rank, on the CPU."""
    seed = trial.draw.getrandbits(32) + max(trial.rank, 0)
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-99, 100, shape, generator=generator).to(dtype)
