"""Exercise `offload_activations`: steps whose saved tensors go to a store that records."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.memory._recording_store import RecordingStore, Saves, freed
from parlab.checks.memory._saving_cases import (
    Case,
    block,
    chain,
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
)
SMALLEST = 4096
CASES = {"a transformer block": block, "views": views, "three layers": partial(chain, layers=3)}


@check_of(MISTAKES, ranks=1)
def offload_activations(check: Check) -> str:
    """Compare gradients, and look into the store and the memory at each stage of a step."""
    with check.trial() as trial:
        for _, make in trial.cases(CASES):
            require_step(trial, make(seeded(trial.draw)))
        trial.situation = "a view with strides of its own"
        require_strides(trial)
        trial.situation = "a retained graph"
        require_second_backward(trial, chain(seeded(trial.draw), 3))
        trial.situation = "two views of one storage"
        require_shared(trial)
        trial.situation = "changes in place"
        require_old_and_new(trial)
        require_error(trial, chain(seeded(trial.draw), 2))
        trial.situation = "an exception in the context"
        require_cleared(trial, chain(seeded(trial.draw), 3))
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
        lambda: written(store, expected, same_gradients(got, right) is None),
        lambda: same_gradients(got, right),
        lambda: MISTAKES.still_in_memory(got=live - allowed) if live > allowed + 256 else None,
        lambda: freed(left, "after the backward pass"),
    )


def stays(store: RecordingStore, case: Case) -> Finding | None:
    kept = (*case.module.parameters(), *case.module.buffers())
    contents = {tensor.detach().numpy().tobytes() for tensor in kept}
    is_written = any(content.tobytes() in contents for content in store.contents)
    return MISTAKES.parameters_written() if is_written else None


def written(store: RecordingStore, expected: Saves, correct: bool) -> Finding | None:
    got, right = len(store.sizes), len(expected.sizes)
    if sorted(store.sizes) == expected.sizes:
        return None
    if got == expected.large:
        return MISTAKES.written_twice(got=got, right=right)
    if got < right and not correct:
        return MISTAKES.address_reused(got=got, right=right)
    return observed(
        f"{got} tensors with {sum(store.sizes)} bytes are written, the smallest with "
        f"{min(store.sizes, default=0)}, expected {right} storages with {sum(expected.sizes)} "
        f"bytes, each with {SMALLEST} or more"
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
    text = f"after the backward pass, {grown} bytes that were read from the store are in memory"
    trial.require(
        *(partial(same_gradients, gradients, right) for gradients in got),
        lambda: observed(text) if grown > SMALLEST else None,
        lambda: freed(left, "when the graph is freed"),
    )


def require_strides(trial: Trial) -> None:
    """Require that a view comes back with its shape, its strides, and its dtype."""
    x = torch.randn(64, 48, generator=seeded(trial.draw), requires_grad=True)

    def saved(context: Any) -> Tensor:
        with context(nn.Identity(), RecordingStore(), SMALLEST):
            node = (x * 2.0).t()[1::2].sin().grad_fn
        return node._saved_self

    view = ran(trial, saved)
    got, right = (view.shape, view.stride(), view.dtype), ((24, 64), (2, 48), torch.float32)
    text = f"a view comes back with shape, strides, and dtype {got}, expected {right}"
    trial.require(lambda: None if got == right else observed(text))


def require_shared(trial: Trial) -> None:
    """Require that a storage is read once for views that are used together."""
    x = torch.randn(64, 64, generator=seeded(trial.draw), requires_grad=True)
    store = RecordingStore()

    def product(context: Any) -> Tensor:
        with context(nn.Identity(), store, SMALLEST):
            left, right = (x * 1.0).chunk(2)
            result = (left * right).sum()
        return torch.autograd.grad(result, x)[0]

    got = ran(trial, product)
    text = f"the backward pass reads the storage {store.reads} times, expected once"
    trial.require(
        lambda: equal(got, x.detach().roll(32, 0), "the gradient"),
        lambda: None if store.reads == 1 else observed(text),
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

    got, at = ran(trial, changed), x.detach()
    name = "the gradient through a storage that is saved, doubled in place, and saved again,"
    trial.require(lambda: equal(got, at.cos() + 2.0 * (2.0 * at).cos(), name, 1e-5))


def require_error(trial: Trial, case: Case) -> None:
    """Require a RuntimeError if a parameter or a small tensor changes after it was saved."""
    small = torch.ones(8, requires_grad=True)

    def attempt(context: Any, target: Callable[[Tensor], Tensor]) -> bool:
        with context(case.module, RecordingStore(), SMALLEST):
            y = small * 1.0
            loss = case.loss() + y.square().sum()
        with torch.no_grad():
            target(y).add_(1.0)
        try:
            loss.backward()
        except RuntimeError:
            return True
        return False

    weight = case.module[1].weight
    for what, target in {"a small tensor": lambda y: y, "a parameter": lambda _: weight}.items():
        raised = ran(trial, attempt, target)
        trial.require(lambda: None if raised else MISTAKES.changed_silently(what=what))


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
