"""Exercise `offload_activations`: steps whose saved tensors go to a recording store."""

import copy
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.memory._recording_store import RecordingStore
from parlab.checks.memory._saving_cases import Case, block, views
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
    old_numbers_used=(
        "the gradients are wrong, and {got} tensors are written, expected {right}: old numbers are "
        "used again. Either a storage has changed in place since it was written (compare its "
        "`_version`), or a new storage has the address or id of one that was freed"
    ),
    still_in_memory=(
        "after the forward pass, {got} bytes are in memory that should be only in the store: "
        "something still refers to storages that have at least `smallest` bytes"
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
READ = "after the backward passes, {} bytes that were read from the store are in memory"
STRIDES = "views come back with the strides {}, expected (2, 48)"
LEFT = (
    "when the graph is freed, the number of its tickets in use is {}, expected 0. Only the graph "
    "may refer to them. (If `pack` returns a saved tensor itself, the graph is never freed: use "
    "`tensor.detach()`)"
)
Saved = tuple[torch.UntypedStorage, int]  # a storage and its version
# Losses, and the parameter `smallest`. Of the views, a tanh in bfloat16 has just as many bytes.
CASES = {"a transformer block": (block, SMALLEST), "views and a change in place": (views, 6144)}


@check_of(MISTAKES, ranks=1)
def offload_activations(check: Check) -> str:
    """Compare gradients, and look into the store and the memory at each stage of a step."""
    with check.trial() as trial:
        for _, (make, smallest) in trial.cases(CASES):
            require_step(trial, make(trial.draw), smallest)
        trial.situation = "two views of one storage"
        require_views(trial)
        trial.situation = "changes in place"
        require_error(trial)
    return "each storage is written once and leaves memory, and gradients are equal bit for bit"


class Interruption(Exception):
    """An exception after a forward pass. The context must end then, too."""


def require_step(trial: Trial, case: Case, smallest: int) -> None:
    """Require the right gradients twice, the right tensors in the store, and free memory."""
    loss, saves = saved_by_autograd(case, smallest)
    right = gradients(loss, case)
    with LiveStorages() as plain:
        loss = case.loss()
    written_ones = {storage for storage, _ in saves} - {case.x.untyped_storage()}
    allowed = plain.live - sum(storage.nbytes() for storage in written_ones) + 256
    del loss, written_ones
    store = RecordingStore()

    def step(context: Any) -> tuple[list[list[Tensor | None]], int, int, int]:
        with LiveStorages() as watch:
            case.x.view_as(case.x)  # or it would count as new if a hook returns its storage
            with suppress(Interruption), context(case.module, store, smallest):
                loss = case.loss()
                live, found = watch.live, [gradients(loss, case)]
                raise Interruption
            found.append(gradients(loss, case))
            read = watch.live - live - sum(map(tensor_bytes, found))
        del loss
        gc.collect()
        return found, live, read, store.left

    found, live, read, left = ran(trial, step)
    trial.require(
        lambda: stays(store, case),
        lambda: written(store.sizes, saves, smallest, not same_gradients(found, right)),
        lambda: same_gradients(found, right),
        lambda: MISTAKES.still_in_memory(got=live - allowed) if live > allowed else None,
        lambda: observed(READ.format(read)) if read > smallest else None,
        lambda: observed(LEFT.format(left)) if left else None,
    )


def saved_by_autograd(case: Case, smallest: int) -> tuple[Tensor, list[Saved]]:
    """Return the loss, and storage and version of each saved tensor that should be written.

    The loss's backward pass computes with copies, so changes in place do not affect it.
    """
    stays = {t.untyped_storage() for t in (*case.module.parameters(), *case.module.buffers())}
    saves: list[Saved] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in stays and storage.nbytes() >= smallest:
            saves.append((storage, tensor._version))
        return copy.deepcopy(tensor.detach())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return case.loss(), saves


def gradients(loss: Tensor, case: Case) -> list[Tensor]:
    options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    return list(torch.autograd.grad(loss, case.leaves, **options))


def same_gradients(passes: Sequence[Sequence[Tensor]], right: Sequence[Tensor]) -> Finding | None:
    """Compare the gradients of each backward pass."""
    found = (
        equal(one, other, f"gradient {i} of backward pass {number}")
        for number, of_pass in enumerate(passes, 1)
        for i, (one, other) in enumerate(zip(of_pass, right, strict=True))
    )
    return next(filter(None, found), None)


def stays(store: RecordingStore, case: Case) -> Finding | None:
    kept = (*case.module.parameters(), *case.module.buffers())
    contents = {tensor.detach().numpy().tobytes() for tensor in kept}
    is_written = any(content.tobytes() in contents for content in store.contents)
    return MISTAKES.parameters_written() if is_written else None


def written(got: list[int], saves: list[Saved], smallest: int, correct: bool) -> Finding | None:
    """Compare the sizes of the written tensors with those of all saved storages and versions."""
    right = sorted(storage.nbytes() for storage, _ in set(saves))
    if sorted(got) == right:
        return None
    if len(got) == len(saves):
        return MISTAKES.written_twice(got=len(got), right=len(right))
    if len(got) < len(right) and not correct:
        return MISTAKES.old_numbers_used(got=len(got), right=len(right))
    return observed(
        f"{len(got)} tensors with {sum(got)} bytes are written, the smallest with "
        f"{min(got, default=0)}, expected {len(right)} storages with {sum(right)} bytes, each with "
        f"{smallest} or more"
    )


def require_views(trial: Trial) -> None:
    """Require that two views come back as they were, from one read of their storage."""
    x, store = views(trial.draw).x, RecordingStore()

    def saved(context: Any) -> tuple[Tensor, Tensor, int]:
        with context(nn.Identity(), store, SMALLEST):
            x.sin()  # its graph is freed at once, but not `x`, which it has saved
            left = store.left
            doubled = (x * 2.0).t()
            node = (doubled[::2] * doubled[1::2]).grad_fn
        return node._saved_self, node._saved_other, left

    *got, left = ran(trial, saved)
    right = [(x.detach() * 2.0).t()[start::2] for start in range(2)]
    strides = [view.stride() for view in got]
    reads = f"the backward pass reads the storage {store.reads} times, expected once"
    trial.require(
        *(partial(equal, one, other, "a view") for one, other in zip(got, right, strict=True)),
        lambda: None if set(strides) == {(2, 48)} else observed(STRIDES.format(strides)),
        lambda: None if store.reads == 1 else observed(reads),
        lambda: observed(LEFT.format(left)) if left else None,
    )


def require_error(trial: Trial) -> None:
    """Require a RuntimeError if a parameter or a small tensor changes after it was saved."""
    module, x, _ = views(trial.draw)
    small = torch.ones(8, requires_grad=True)

    def attempt(context: Any, what: str) -> bool:
        with context(module, RecordingStore(), SMALLEST):
            y = small * 1.0
            loss = module(x).sum() + y.square().sum()
        with torch.no_grad():
            (module.weight if what == "a parameter" else y).add_(1.0)
        try:
            loss.backward()
        except RuntimeError:
            return True
        return False

    for what in ("a small tensor", "a parameter"):
        raised = ran(trial, attempt, what)
        trial.require(lambda: None if raised else MISTAKES.changed_silently(what=what))


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
