"""Exercise `checkpoint`: training steps without checkpoints are the reference."""

import gc

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.memory import _segments as segments
from parlab.checks.memory._segments import Around, Run, Watch

SECONDS = 10.0
SEGMENTS, INSIDE = 3, 4  # in the step whose memory is measured

MISTAKES = Mistakes(
    activations_kept=(
        "{alive} of the {all} tensors that the functions have computed inside are still in memory "
        "after the forward pass. Call the function without a graph, and keep only its arguments"
    ),
    never_freed=(
        "{alive} tensors that a second forward pass has computed are still in memory {when}. Keep "
        "nothing of it, neither in `ctx` nor elsewhere"
    ),
    arguments_kept=(
        "{alive} arguments or results are still in memory after the backward pass has used them. "
        "Autograd frees what `ctx.save_for_backward` gets, unless something else refers to it, "
        "such as another attribute of `ctx`, or a closure with `args`"
    ),
    other_random_numbers=(
        "the second call of {name} draws other random numbers than the first, so its dropout masks "
        "differ. Before it, set the generator to the state from before the first call"
    ),
    generator_not_put_back=(
        "after the step, the generator draws other numbers than without a checkpoint. After the "
        "second forward pass, put back the state from before it"
    ),
    parameter_without_gradient=(
        "`weight`, which the function uses without getting it as an argument, has no gradient. "
        "`torch.autograd.backward` on the new outputs also reaches such tensors. If no argument "
        "needs a gradient, pass `apply` one more tensor that does"
    ),
    uses_library="torch.utils.checkpoint calls the function. Write the checkpoint yourself",
)


@check_of(MISTAKES, ranks=1)
def checkpoint(check: Check) -> str:
    """Compare steps with and without checkpoints. Then look at the memory."""
    with check.trial() as trial:
        for _, step in trial.cases(segments.STEPS):
            leaves, seed = segments.drawn(trial.draw)
            right = segments.run(step, leaves, seed, segments.plainly)
            got = trial.run_function(
                lambda: segments.run(step, leaves, seed, check.function), seconds=SECONDS
            )
            trial.require(
                lambda: MISTAKES.uses_library() if got.watch.uses_library else None,
                lambda: a_tuple(got.watch),
                lambda: called_again(got, right),
                lambda: equal(got.loss, right.loss, "the loss"),
                lambda: same_random_numbers(got.watch),
                lambda: same_gradients(got, right),
                lambda: (
                    None
                    if same(got.next_random, right.next_random)
                    else MISTAKES.generator_not_put_back()
                ),
            )
        trial.situation = f"{SEGMENTS} functions in a row"
        x = leaves["x"]
        found = trial.run_function(lambda: look_at_memory(check.function, x), seconds=SECONDS)
        trial.require(lambda: found)
    return (
        "the same gradients, bit for bit, with dropout, keywords, and several outputs; each "
        "function runs once more, and keeps only its arguments"
    )


def a_tuple(watch: Watch) -> Finding | None:
    if not watch.no_tuple:
        return None
    return observed(
        f"it returns a {watch.no_tuple}, but the function returns a tuple with one tensor"
    )


def same_random_numbers(watch: Watch) -> Finding | None:
    for name, (first, *others) in watch.calls.items():
        if name != segments.INNER and any(number != first for number in others):
            return MISTAKES.other_random_numbers(name=name)
    return None


def same_gradients(got: Run, right: Run) -> Finding | None:
    """Compare the gradients of all leaves, bit for bit."""
    for name, wanted in right.gradients.items():
        found = got.gradients[name]
        if wanted is None and found is not None:
            return observed(f"`{name}` has a gradient, but it needs none")
        if wanted is not None and found is None and name == "weight":
            return MISTAKES.parameter_without_gradient()
        if wanted is not None and (finding := equal(found, wanted, f"the gradient of `{name}`")):
            return finding
    return None


def called_again(got: Run, right: Run) -> Finding | None:
    """Allow one more call of each function for the backward pass, and two more of an inner one."""
    backward = any(gradient is not None for gradient in right.gradients.values())
    for name, calls in right.watch.calls.items():
        times = len(got.watch.calls[name])
        enough = len(calls) * (1 + backward + (name == segments.INNER))
        if times > enough:
            return observed(f"{name} is called {times} times in a step, expected {enough}")
    return None


def look_at_memory(around: Around, x: Tensor) -> Finding | None:
    """Count the tensors from inside several functions that are in memory at different times."""
    watch, outputs = Watch(), Watch()
    arguments: list[int] = []

    def segment(x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        arguments.append(outputs.in_memory())
        for _ in range(INSIDE):
            x = watch.inside(x.sin().exp())
        return x.cos(), tokens + 1

    def alive() -> int:
        gc.collect()
        return watch.in_memory()

    y, tokens = x, torch.arange(len(x))
    for _ in range(SEGMENTS):
        y, tokens = map(outputs.inside, around(watch.segment(segment), y, tokens))
    if count := alive():
        return MISTAKES.activations_kept(alive=count, all=SEGMENTS * INSIDE)
    loss = y.sum()
    del y, tokens
    watch.alive.clear()
    loss.backward()
    if count := max(watch.alive, default=0):
        return MISTAKES.never_freed(alive=count, when="when the next function is called again")
    if arguments[-1]:
        return MISTAKES.arguments_kept(alive=arguments[-1])
    del loss
    if count := alive():
        return MISTAKES.never_freed(alive=count, when="after the step")
    return None
