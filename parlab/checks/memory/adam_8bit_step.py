"""Exercise `adam_8bit_step`: each step is compared with one in float64 from the learner's codes."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.unchanged import unchanged
from parlab.checks.memory._blocks import codes_are_nearest, dequantized, pair, quantized
from parlab.formats.dynamic import dynamic_map

STEPS, CLOSE = 5, 2e-6
MISTAKES = Mistakes(
    rounded_first=(
        "the parameter moves along moments that were already quantized. Use the new moments, and "
        "quantize them for the next step"
    ),
    not_corrected=(
        "the moments are not divided by 1 − βᵗ, so the first steps have the wrong length"
    ),
    not_in_place=(
        "the parameter has not changed: change its values in place. A new tensor in its `.data` "
        "does not reach other views of its memory"
    ),
    eps_in_root="ε is added inside the root of v. Add it to the root",
    signed_map_for_v=(
        "v is quantized with the signed map, which wastes half of its levels on negative numbers. "
        "Use the unsigned one"
    ),
    float_states=(
        "between the steps, `state` keeps {got} bytes of tensors, expected {right}: the codes and "
        "the absmax"
    ),
)
Moments = tuple[Tensor, Tensor]
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "600 numbers": (600, {}),
    "other settings": (333, {"betas": (0.5, 0.75), "eps": 1e-3, "block_size": 64}),
    "small gradients": (100, {"block_size": 32}),
    "numbers whose v is too small for a code": (64, {"block_size": 64}),
}


@check_of(MISTAKES, ranks=1)
def adam_8bit_step(check: Check) -> str:
    """Check five steps of each case: the parameter, both moments, and the bytes of the state."""
    with check.trial() as trial:
        for name, (length, settings) in trial.cases(CASES):
            generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
            size, lr = 1e-9 if name == "small gradients" else 0.1, 2.0**-5
            parameter, other = torch.randn(2, length, generator=generator)
            state, other_state = {}, {}
            situation = trial.situation
            for step in range(1, STEPS + 1):
                trial.situation = f"{situation}, step {step}"
                gradient = size * torch.randn(length, generator=generator)
                if name.startswith("numbers"):  # then m alone remembers them
                    gradient[::2] *= 1e-6 * (step % 2)
                if name == "other settings" and step == 3:  # m still moves the parameter
                    gradient.zero_()
                given, before = gradient.clone(), parameter.clone()
                old = moments(state, length, settings)
                function = partial(check.function, lr=lr, **settings)
                # A view: only a change in place reaches `parameter`.
                trial.run_function(function, parameter[:], given, state)
                trial.run_function(function, other, gradient.flip(0), other_state)
                trial.require(
                    lambda: unchanged("`gradient`", given, gradient),
                    lambda: moved(parameter, before, gradient, old, step, lr, settings),
                    lambda: counted(state, step),
                    lambda: kept(state, gradient, old, settings),
                )
    return f"{STEPS} steps from your codes, as in float64; both states take 8 bits for each number"


def constants(settings: dict[str, Any]) -> tuple[tuple[float, float], float, int]:
    full = {"betas": (0.9, 0.999), "eps": 1e-8, "block_size": 256} | settings
    return full["betas"], full["eps"], full["block_size"]


def moments(state: dict[str, Any], length: int, settings: dict[str, Any]) -> Moments:
    """Return both moments of the learner's state, in float64."""
    if not state:
        return torch.zeros(2, length, dtype=torch.float64).unbind()
    block_size = constants(settings)[2]
    return (
        dequantized(*state["m"], dynamic_map(True), block_size),
        dequantized(*state["v"], dynamic_map(False), block_size),
    )


def updated(old: Moments, gradient: Tensor, settings: dict[str, Any]) -> Moments:
    betas, g = constants(settings)[0], gradient.double()
    return betas[0] * old[0] + (1 - betas[0]) * g, betas[1] * old[1] + (1 - betas[1]) * g * g


def moved(
    got: Tensor,
    before: Tensor,
    gradient: Tensor,
    old: Moments,
    step: int,
    lr: float,
    settings: dict[str, Any],
) -> Finding | None:
    """Compare the parameter with the right values, and with those of mistakes."""
    betas, eps, block_size = constants(settings)
    new = updated(old, gradient, settings)
    maps = dynamic_map(True), dynamic_map(False)
    rounded = [
        dequantized(*quantized(x, levels, block_size), levels, block_size)
        for x, levels in zip(new, maps, strict=True)
    ]

    def along(
        both: Iterable[Tensor], t: float = step, eps: float = eps, inside: float = 0.0
    ) -> Tensor:
        m, v = (x / (1 - beta**t) for x, beta in zip(both, betas, strict=True))
        return (before.double() - lr * m / ((v + inside).sqrt() + eps)).float()

    variants = [
        *([("not_in_place", before)] if gradient.any() else []),
        ("rounded_first", along(rounded)),
        ("not_corrected", along(new, math.inf)),
        ("eps_in_root", along(new, eps=0.0, inside=eps)),
        ("eps_in_root", along(new, eps=0.0, inside=eps**2)),
    ]
    return explained(got, along(new), variants, MISTAKES, "the parameter", CLOSE)


def counted(state: dict[str, Any], step: int) -> Finding | None:
    for key in ("step", "m", "v"):
        if key not in state:
            return observed(f'after a step, `state` has no "{key}"')
    if int(state["step"]) == step:
        return None
    return observed(f'state["step"] is {state["step"]}, expected {step}, the steps so far')


def kept(
    state: dict[str, Any], gradient: Tensor, old: Moments, settings: dict[str, Any]
) -> Finding | None:
    """Require the nearest codes of both new moments, and no other tensors."""
    block_size = constants(settings)[2]
    for key, signed, new in zip("mv", (True, False), updated(old, gradient, settings), strict=True):
        if found := pair(state[key], new, block_size, f'state["{key}"]'):
            return found
        codes, absmax = state[key]
        right = quantized(new, dynamic_map(signed), block_size)[1]
        if found := equal(absmax, right, f"the absmax of {key}", 1e-5, absolute=0.0):
            return found
        levels = dynamic_map(signed)
        if found := codes_are_nearest(codes, new, levels, block_size, f"the codes of {key}"):
            other = codes_are_nearest(codes, new, dynamic_map(True), block_size)
            return MISTAKES.signed_map_for_v() if key == "v" and not other else found
    blocks = -(-len(gradient) // block_size)
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    got, limit = memory.tensor_bytes(tensors), 2 * len(gradient) + 8 * blocks
    # A step counter may be a tensor, and codes may be views of padded blocks.
    if got <= limit + 2 * block_size + 16:
        return None
    return MISTAKES.float_states(got=got, right=limit)
