"""Exercise `offload_activations`: steps whose saved tensors go to a store that records."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.memory._recording_store import RecordingStore, Saves, freed
from parlab.checks.memory._saving_cases import (
    Case,
    Looks,
    block,
    chain,
    present,
    same_gradients,
    seeded,
    views,
)
from parlab.memory import LiveStorages, tensor_bytes

MISTAKES = Mistakes(
    parameters_written=(
        "a parameter or buffer of `module` is written, which is in memory anyway. Compare "
        "storages: autograd also saves views of parameters"
    ),
    small_written="a storage of {size} bytes is written, and `smallest` is {smallest}",
    written_twice=(
        "{got} tensors are written, expected {right}: write each storage only once, even if "
        "several views of it are saved"
    ),
    address_reused=(
        "the gradients are wrong, and {got} tensors are written, expected {right}: a new storage "
        "is taken for one that was freed, since it has the same address or id"
    ),
    still_in_memory=(
        "after the forward pass, {got} bytes are in memory that should be only in the store: "
        "something still refers to storages that were written"
    ),
    hooks_left=(
        "the hooks are still set after the context has ended, so later tensors are written too. "
        "Use `with saved_tensors_hooks(…)`, which also removes them after an exception"
    ),
    changed_silently=(
        "{what} stays in memory and is changed in place before the backward pass, which then "
        "computes wrong gradients. Compare `_version`, and raise a RuntimeError"
    ),
    old_numbers=(
        "a storage was saved, changed in place, and saved again, but only its old numbers were "
        "written. Write it again if its `_version` is another one"
    ),
    read_again=(
        "the backward pass of a product of two views of one storage reads it {got} times, expected "
        "once: share it while it is in use"
    ),
)
SMALLEST = 4096
CASES = {"a transformer block": block, "views": views, "three layers": partial(chain, layers=3)}


@check_of(MISTAKES, ranks=1)
def offload_activations(check: Check) -> str:
    """Compare gradients, and look into the store and the memory at each stage of a step."""
    with check.trial() as trial:
        for _, make in trial.cases(CASES):
            require_step(trial, make(seeded(trial.draw)))
        for _, columns in trial.cases({"a view with strides of its own": 48}, again=False):
            require_strides(trial, columns)
        for _, layers in trial.cases({"a retained graph": 3}, again=False):
            require_second_backward(trial, chain(seeded(trial.draw), layers))
        for _, size in trial.cases({"two views of one storage": 2}, again=False):
            require_shared(trial, size)
        for _, make in trial.cases({"changes in place": chain}, again=False):
            require_old_and_new(trial)
            require_error(trial, make(seeded(trial.draw), 2))
        for _, make in trial.cases({"an exception in the context": chain}, again=False):
            require_cleared(trial, make(seeded(trial.draw), 3))
    return "each storage is written once and leaves memory, and gradients are equal bit for bit"


def require_step(trial: Trial, case: Case) -> None:
    """Require the right gradients, the right tensors in the store, and free memory."""
    expected = Saves([*case.module.parameters(), *case.module.buffers()], SMALLEST)
    right = torch.autograd.grad(expected.record(case.loss), case.leaves, allow_unused=True)
    with LiveStorages() as plain:
        loss = case.loss()
    before = [case.x, *case.constants]
    allowed = plain.live - expected.new(before)
    del loss
    store = RecordingStore()

    def step(context: Any) -> tuple[list[Tensor | None], int, int]:
        with LiveStorages() as watch:
            for tensor in before:
                tensor.view_as(tensor)  # or it would count as new if a hook returns its storage
            with context(case.module, store, SMALLEST):
                loss = case.loss()
        live = watch.live
        gradients = torch.autograd.grad(loss, case.leaves, allow_unused=True)
        del loss
        gc.collect()
        return gradients, live, store.left

    got, live, left = ran(trial, step)
    trial.require(
        lambda: stays(store, case),
        lambda: written(store, expected, all(map(torch.equal, *present(got, right)))),
        lambda: same_gradients(got, right),
        lambda: MISTAKES.still_in_memory(got=live - allowed) if live > allowed + 256 else None,
        lambda: freed(left, "after the backward pass"),
    )


def stays(store: RecordingStore, case: Case) -> Finding | None:
    for kept in (*case.module.parameters(), *case.module.buffers()):
        numbers = np.sort(kept.detach().flatten().numpy())
        for content in store.contents:
            if content.nbytes == numbers.nbytes and np.array_equal(
                np.sort(content.view(np.float32)), numbers
            ):
                return MISTAKES.parameters_written()
    small = min(store.sizes, default=SMALLEST)
    return MISTAKES.small_written(size=small, smallest=SMALLEST) if small < SMALLEST else None


def written(store: RecordingStore, expected: Saves, correct: bool) -> Finding | None:
    got, right = len(store.sizes), len(expected.sizes)
    if sorted(store.sizes) == expected.sizes:
        return None
    if got == expected.large:
        return MISTAKES.written_twice(got=got, right=right)
    if got < right and not correct:
        return MISTAKES.address_reused(got=got, right=right)
    return observed(
        f"{got} tensors with {sum(store.sizes)} bytes are written, expected {right} storages with "
        f"{sum(expected.sizes)} bytes"
    )


def require_second_backward(trial: Trial, case: Case) -> None:
    """Require the same gradients twice, with both backward passes inside of the context."""
    right = torch.autograd.grad(case.loss(), case.leaves)
    store = RecordingStore()

    def twice(context: Any) -> tuple[list[list[Tensor]], int, int]:
        with LiveStorages() as watch, context(case.module, store, SMALLEST):
            loss = case.loss()
            before, gradients = watch.live, []
            for _ in range(2):
                gradients.append(list(torch.autograd.grad(loss, case.leaves, retain_graph=True)))
            grown = watch.live - before - sum(map(tensor_bytes, gradients))
            del loss
            gc.collect()
            return gradients, grown, store.left

    got, grown, left = ran(trial, twice)
    trial.require(
        *(partial(same_gradients, gradients, right) for gradients in got),
        lambda: not_collected(grown),
        lambda: freed(left, "when the graph is freed"),
    )


def not_collected(grown: int) -> Finding | None:
    if grown <= SMALLEST:
        return None
    return observed(
        f"after the backward pass, {grown} bytes that were read from the store are still in memory"
    )


def require_strides(trial: Trial, columns: int) -> None:
    """Require that a view comes back with its shape, its strides, and its dtype."""
    x = torch.randn(64, columns, generator=seeded(trial.draw), requires_grad=True)

    def look(context: Any) -> list[tuple[Any, ...]]:
        Looks.found.clear()
        with context(nn.Identity(), RecordingStore(), SMALLEST):
            loss = Looks.apply((x * 2.0).t()[1::2])
        loss.backward()
        return list(Looks.found)

    got = ran(trial, look)
    right = ((columns // 2, 64), (2, columns), torch.float32)
    trial.require(
        lambda: (
            None
            if got == [right]
            else observed(f"a view comes back with shape, strides, and dtype {got}, not {right}")
        )
    )


def require_shared(trial: Trial, parts: int) -> None:
    """Require that a storage is read once for views that are used together."""
    x = torch.randn(64, 64, generator=seeded(trial.draw), requires_grad=True)
    store = RecordingStore()

    def product(context: Any) -> Tensor:
        with context(nn.Identity(), store, SMALLEST):
            left, right = (x * 1.0).chunk(parts)
            result = (left * right).sum()
        return torch.autograd.grad(result, x)[0]

    got = ran(trial, product)
    trial.require(
        lambda: equal(got, x.detach().roll(32, 0), "the gradient"),
        lambda: None if store.reads == 1 else MISTAKES.read_again(got=store.reads),
    )


def require_old_and_new(trial: Trial) -> None:
    """Require the numbers of the time when a tensor was saved."""
    x = torch.randn(64, 64, generator=seeded(trial.draw), requires_grad=True)

    def changed(context: Any) -> Tensor:
        with context(nn.Identity(), RecordingStore(), SMALLEST):
            y = x * 1.0
            first = y.sin()
            second = y.mul_(2.0).sin()
        return torch.autograd.grad((first + second).sum(), x)[0]

    got = ran(trial, changed)
    x = x.detach()
    right, old = x.cos() + 2.0 * (2.0 * x).cos(), x.cos() + 2.0 * x.cos()
    trial.require(
        lambda: MISTAKES.old_numbers() if torch.allclose(got, old) else None,
        lambda: equal(got, right, "the gradient", 1e-5),
    )


def require_error(trial: Trial, case: Case) -> None:
    """Require a RuntimeError if a parameter or a small tensor changes after it was saved."""
    small = torch.ones(8, requires_grad=True)

    def attempt(context: Any, target: Callable[[Tensor], Tensor]) -> Exception | None:
        with context(case.module, RecordingStore(), SMALLEST):
            y = small * 1.0
            loss = case.loss() + y.square().sum()
        with torch.no_grad():
            target(y).add_(1.0)
        try:
            loss.backward()
        except RuntimeError as error:
            return error
        return None

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "a small tensor": lambda y: y,
        "a parameter": lambda _: case.module[1].weight,
    }
    for what, target in changes.items():
        error = ran(trial, attempt, target)
        trial.require(lambda: MISTAKES.changed_silently(what=what) if error is None else None)


def require_cleared(trial: Trial, case: Case) -> None:
    """Require that an exception ends the context, and leaves nothing in the store."""
    store = RecordingStore()

    def interrupted(context: Any) -> int:
        try:
            with context(case.module, store, SMALLEST):
                case.loss()
                raise KeyError
        except KeyError:
            gc.collect()
            return store.left

    left = ran(trial, interrupted)
    trial.require(lambda: freed(left, "after a forward pass without a backward pass"))


def ran(trial: Trial, step: Callable[..., Any], *arguments: Any) -> Any:
    """Run a step with the learner's context manager, and require that it leaves no hooks."""
    hooks = 0

    def cleared() -> Any:
        nonlocal hooks
        try:
            return step(trial.check.function, *arguments)
        finally:
            while torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
                torch._C._autograd._pop_saved_tensors_default_hooks()
                hooks += 1

    result = trial.run_function(cleared)
    trial.require(lambda: MISTAKES.hooks_left() if hooks else None)
    return result
