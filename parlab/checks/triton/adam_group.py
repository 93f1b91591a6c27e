"""Exercise `adam_group`."""

from dataclasses import replace

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.triton.adam_step import close, differs, once, stored, tensors
from parlab.checks.triton.adams import Settings, State, random_settings, stepped
from parlab.checks.triton.watched import KERNEL, Run, as_passed, inside, one_launch, run
from parlab.checks.untouched import unchanged
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    **KERNEL.texts,
    launch_per_tensor=(
        "{got} launches for {got} tensors: a table of their addresses goes to one launch for all"
    ),
    one_step_for_all=(
        "all tensors are corrected for the same step: tensor {tensor} is at step {right}"
    ),
    left_out="tensor {tensor} of {size} elements is not updated: neither parameter nor moments",
    rest_left_out=(
        "of tensor {tensor}, which has {size} elements, those from {first} on are not updated: "
        "its blocks together go to the last of its `numel()`"
    ),
)


@check_of(MISTAKES)
def adam_group(check: Check) -> str:
    """Check groups of tensors of very different sizes, in one launch each."""
    with check.trial() as trial:
        draw = trial.draw
        large = draw.randrange(4100, 9000)
        for shapes, dtype, decay, decoupled in [
            ([(64,)], torch.float32, False, False),
            ([(5,), (large,), (1,), (33, 17)], torch.float32, True, False),
            ([(draw.randrange(2, 90),) for _ in range(12)], torch.float32, True, True),
            ([(3, 7), (1025,), (40,)], torch.bfloat16, True, True),
            ([(2, 3, 5), (700,)], torch.float16, True, False),
        ]:
            of = random_settings(draw, decay=decay, decoupled=decoupled)
            sizes = [torch.Size(shape).numel() for shape in shapes]
            trial.situation = f"tensors of {sizes} elements, {str(dtype)[6:]}"
            steps = [draw.randrange(1, 9) for _ in shapes]
            steps[-1] = steps[0] % 8 + 1
            arena = Arena(device)
            before = [tensors(trial, s, dtype, n) for s, n in zip(shapes, steps, strict=True)]
            now = [placed(arena, state, i) for i, state in enumerate(before)]
            done = run(
                trial,
                arena,
                [s.p for s in now],
                [s.g for s in now],
                [s.m for s in now],
                [s.v for s in now],
                steps,
                *of.values,
            )
            trial.require(
                lambda: inside(done),
                lambda: launched(done, len(now)),
                lambda: unchanged("`gradients`", [s.g for s in now], [s.g for s in before]),
                lambda: values(now, before, of),
                lambda: as_passed(done),
                lambda: all_stored(done, now),
                lambda: once(done, *now),
            )
    return "one launch for all tensors where they are, each at its own step, three dtypes"


def placed(arena: Arena, state: State, number: int) -> State:
    return State(
        arena.place(f"parameters[{number}]", state.p),
        arena.place(f"gradients[{number}]", state.g),
        arena.place(f"exp_avgs[{number}]", state.m),
        arena.place(f"exp_avg_sqs[{number}]", state.v),
        state.step,
    )


def launched(done: Run, tensors: int) -> Finding | None:
    if tensors > 1 and len(done.made) == tensors:
        return MISTAKES.launch_per_tensor(got=tensors)
    return one_launch(done)


def values(now: list[State], before: list[State], of: Settings) -> Finding | None:
    got = [(s.p, s.m, s.v) for s in now]
    right = [stepped(s, of) for s in before]
    wrong = [i for i in range(len(now)) if not close(got[i], right[i])]
    if not wrong:
        return None
    first = wrong[0]
    for step in {s.step for s in before}:
        if all(
            close(one, stepped(replace(s, step=step), of))
            for one, s in zip(got, before, strict=True)
        ):
            return MISTAKES.one_step_for_all(tensor=first, right=before[first].step)
    old = before[first]
    kept = [(a.cpu() == b).flatten() for a, b in ((now[first].m, old.m), (now[first].v, old.v))]
    same = kept[0] & kept[1]
    if same.all():
        return MISTAKES.left_out(tensor=first, size=len(same))
    changed = int((~same).nonzero()[-1]) + 1
    if changed < len(same) and not same[:changed].any():
        return MISTAKES.rest_left_out(tensor=first, size=len(same), first=changed)
    return differs(got[first], right[first], f"s[{first}]")


def all_stored(done: Run, now: list[State]) -> Finding | None:
    for number, state in enumerate(now):
        if found := stored(done, state, f"s[{number}]"):
            return found
    return None
