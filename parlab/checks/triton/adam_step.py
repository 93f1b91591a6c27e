"""Exercise `adam_step`."""

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.triton.adams import (
    ABSOLUTE,
    MOMENTS,
    ROUNDED,
    Settings,
    State,
    mistaken,
    random_settings,
    stepped,
)
from parlab.checks.triton.watched import (
    KERNEL,
    Run,
    as_passed,
    by_kernel,
    inside,
    is_near,
    near,
    numbers,
    once_stored,
    one_launch,
    run,
)
from parlab.checks.untouched import unchanged
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    **KERNEL.texts,
    eps_inside="ε is inside the root: it is added to √(v / (1 − β₂ᵗ)), not to what is under it",
    eps_uncorrected=(
        "ε is divided by the correction as well: first √(v / (1 − β₂ᵗ)), then + ε. (The paper's "
        "own shortcut does that, and calls it another ε; torch does not)"
    ),
    moments_before_update=(
        "the parameter moves by the old moments: m and v are updated first, then used"
    ),
    wrong_step="the corrections are those of another step: `step` is 1 at the first",
    no_correction="the moments are not divided by 1 − βᵗ",
    betas_swapped="β₁ and β₂ are exchanged: the first is the mean's, the second the squares'",
    no_decay="weight decay does nothing",
    coupled=(
        "decoupled weight decay is asked for, and λw goes into the gradient, and with it into the "
        "moments"
    ),
    decoupled="λw belongs into the gradient here: the weights are decayed directly instead",
    decay_without_rate="decoupled weight decay takes ηλw from the weights, and here λw is taken",
)


@check_of(MISTAKES)
def adam_step(check: Check) -> str:
    """Check one step each of many, with guards around all memory."""
    with check.trial() as trial:
        draw = trial.draw
        for shape, dtype, step, decay, decoupled in [
            ((1024,), torch.float32, 3, False, False),
            ((1,), torch.float32, 1, False, True),
            ((1025,), torch.float32, 1, False, False),  # one more than blocks have
            ((7, draw.randrange(30, 60)), torch.float32, 2, True, False),
            ((3, 5, draw.randrange(30, 60)), torch.float32, 4, True, True),
            ((1100,), torch.float16, 2, True, False),
            ((draw.randrange(600, 900),), torch.bfloat16, 5, True, True),
        ]:
            of = random_settings(draw, decay=decay, decoupled=decoupled)
            kind = ("decoupled " if decoupled else "coupled ") if decay else "no "
            trial.situation = f"shape {shape}, {str(dtype)[6:]}, step {step}, {kind}weight decay"
            arena, before = Arena(device), tensors(trial, shape, dtype, step)
            now = State(
                arena.place("parameter", before.p),
                arena.place("gradient", before.g),
                arena.place("exp_avg", before.m),
                arena.place("exp_avg_sq", before.v),
                step,
            )
            done = run(trial, arena, now.p, now.g, now.m, now.v, step, *of.values)
            trial.require(
                lambda: inside(done),
                lambda: one_launch(done),
                lambda: unchanged("`gradient`", now.g, before.g),
                lambda: values(now, before, of),
                lambda: as_passed(done),
                lambda: stored(done, now),
                lambda: once(done, now),
            )
    return (
        "one launch for parameter and moments, in place; both kinds of weight decay, three dtypes"
    )


def tensors(trial, shape: tuple[int, ...], dtype: torch.dtype, step: int) -> State:
    """Random numbers; moments such as some steps leave them."""
    p, g, m, v = (numbers(trial, *shape) for _ in range(4))
    return State(p.to(dtype), (g * 0.3).to(dtype), m * 0.1, v * v * 0.05 + 1e-3, step)


def values(now: State, before: State, of: Settings) -> Finding | None:
    right = stepped(before, of)
    got = now.p, now.m, now.v
    if close(got, right):
        return None
    for name, other in mistaken(before, of):
        if not close(other, right) and close(got, other):
            return getattr(MISTAKES, name)()
    return differs(got, right)


def close(got: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> bool:
    relative = ROUNDED.get(got[0].dtype, ROUNDED[torch.float32])
    return is_near(got[0], right[0], relative, ABSOLUTE) and all(
        is_near(a, b, MOMENTS) for a, b in zip(got[1:], right[1:], strict=True)
    )


def differs(got: tuple[Tensor, ...], right: tuple[Tensor, ...], name: str = "") -> Finding | None:
    """What is wrong first, of moments and parameter, which follows from them."""
    return (
        near(got[1], right[1], f"`exp_avg{name}`", MOMENTS)
        or near(got[2], right[2], f"`exp_avg_sq{name}`", MOMENTS)
        or near(got[0], right[0], f"`parameter{name}`", ROUNDED[got[0].dtype], ABSOLUTE)
    )


def stored(done: Run, now: State, name: str = "") -> Finding | None:
    """Whether the kernel has written parameter and moments, once; `name` follows theirs."""
    for what, tensor in (("parameter", now.p), ("exp_avg", now.m), ("exp_avg_sq", now.v)):
        called = f"`{what}{name}`"
        if found := by_kernel(done, tensor, called) or once_stored(done, tensor, called):
            return found
    return None


def once(done: Run, *states: State) -> Finding | None:
    """Whether nothing is loaded twice; tables of addresses are allowed for."""
    if not done.seen.known:
        return None
    right = sum(t.nbytes for state in states for t in (state.p, state.g, state.m, state.v))
    if done.seen.loaded > 1.1 * right + 200 * (len(states) + done.made[0].programs):
        return evidence(
            f"{done.seen.loaded:,} bytes are loaded where parameter, gradient and moments have "
            f"{right:,}: each number is loaded once"
        )
    return None
