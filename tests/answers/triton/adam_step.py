"""Answers to `adam_step`."""

import torch
import triton
import triton.language as tl

from parlab.answers import Answers

answers = Answers("adam_step")
adam_rule = answers.reference("adam_step").__globals__["adam_rule"]

DECAY = "p = p - lr * decay * p"
COUPLED = "g = g + decay * p"
M = "m = beta1 * m + (1 - beta1) * g"
V = "v = beta2 * v + (1 - beta2) * g * g"
MOVE = "p = p - lr * (m / correction1) / (tl.sqrt(v / correction2) + eps)"
MASK = "mask = offsets < n"
LOAD_G = "g = tl.load(g_pointer + offsets, mask=mask).to(tl.float32)"
LOAD_P = "p = tl.load(p_pointer + offsets, mask=mask).to(tl.float32)"
STORE_P = "tl.store(p_pointer + offsets, p, mask=mask)"
STORE_V = "tl.store(v_pointer + offsets, v, mask=mask)"
STORE_G = "tl.store(g_pointer + offsets, 2 * g, mask=mask)"
GRID = "(triton.cdiv(n, 1024),)"
POWERS = "1 - beta1**step, 1 - beta2**step"
CALL = "adam_kernel[(triton.cdiv(n, 1024),)]("
TORCH_DECAYS = "if decoupled:\n        parameter.mul_(1 - lr * weight_decay)\n"
DECAYED = (
    "p = (p - lr * decay * p).to(p_pointer.dtype.element_ty).to(tl.float32) if DECOUPLED else p"
)
BETAS = "lr, beta1, beta2, 1 - beta1"

answers.edit("loads_outside", "no_mask", (MASK, "mask = offsets >= 0"))
answers.edit("stores_outside", "store_unmasked", (STORE_P, STORE_P.replace(", mask=mask", "")))
answers.edit("eps_inside", "eps_in_the_root", (MOVE, MOVE.replace(
    "(tl.sqrt(v / correction2) + eps)", "tl.sqrt(v / correction2 + eps)")))  # fmt: skip
answers.edit(
    "eps_uncorrected",
    "eps_before_the_correction",
    (MOVE, MOVE.replace("+ eps", "+ eps / tl.sqrt(correction2 + 0 * v)")),
)
answers.edit(
    "moments_before_update",
    "moved_first",
    (M, MOVE + "\n    " + M),
    ("    " + MOVE + "\n    return", "    return"),
)
answers.edit("wrong_step", "from_zero", (POWERS, POWERS.replace("step", "(step + 1)")))
answers.edit("no_correction", "uncorrected", (POWERS, "1.0, 1.0"))
answers.edit("betas_swapped", "betas_exchanged", ("n, (beta1, beta2) =", "n, (beta2, beta1) ="))
answers.edit("no_decay", "no_decay", (DECAY, "p = p"), (COUPLED, "g = g"))
answers.edit("coupled", "always_coupled", (DECAY, COUPLED))
answers.edit("decoupled", "always_decoupled", (COUPLED, DECAY))
answers.edit("decay_without_rate", "rate_left_out", (DECAY, "p = p - decay * p"))
answers.edit(None, "decayed_after", (DECAY, "p = p"), (MOVE, MOVE.replace(
    "p = p -", "p = p - (lr * decay * p if DECOUPLED else 0.0) * lr -")))  # fmt: skip
answers.edit("argument_changed", "gradient_overwritten",
             (STORE_V, STORE_V + "\n    " + STORE_G))  # fmt: skip
answers.edit(
    None,
    "decayed_by_torch",
    (DECAY, "p = p"),
    (CALL, TORCH_DECAYS + "    " + CALL),
    says="the caller passed",
)
answers.edit(
    None,
    "rounded_twice",
    (DECAY, "p = p"),
    (LOAD_P, LOAD_P + "\n    " + DECAYED),
)
answers.edit(None, "moments_not_stored", (STORE_V, "pass"))
answers.edit(None, "squares_forgotten", (V, V.replace("g * g", "g")))
answers.edit(None, "full_blocks_alone", (GRID, "(max(1, n // 1024),)"))
answers.edit(
    None,
    "loaded_again",
    (LOAD_G, LOAD_G + "\n    " + LOAD_G.replace("g = ", "again = ") + "\n    g = (g + again) / 2"),
)


def step_of_torch(p, g, m, v, step, lr, betas, eps, decay, decoupled):
    p32, g = p.float(), g.float()
    if decoupled:
        p32 = p32 - lr * decay * p32
    else:
        g = g + decay * p32
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    root = (v / (1 - betas[1] ** step)).sqrt() + eps
    p.copy_(p32 - lr / (1 - betas[0] ** step) * m / root)


@answers.wrong("no_launch")
def torch_alone(p, g, m, v, *settings):
    step_of_torch(p, g, m, v, *settings)


@answers.wrong("several_launches")
def in_two_halves(p, g, m, v, *settings):
    flat = [t.view(-1) for t in (p, g, m, v)]
    half = p.numel() // 2
    answers.reference()(*(t[half:] for t in flat), *settings)
    answers.reference()(*(t[:half] for t in flat), *settings)


@answers.wrong("not_by_kernel")
def torch_in_the_end(p, g, m, v, *settings):
    right = [t.clone() for t in (p, m, v)]
    step_of_torch(right[0], g, right[1], right[2], *settings)
    other = [torch.zeros_like(t) for t in (p, g, m, v)]
    answers.reference()(*other, *settings)
    for tensor, value in zip((p, m, v), right, strict=True):
        tensor.copy_(value)


@triton.jit
def plain_kernel(p, g, m, v, n, first, second, root, lr, b1, b2, eps, DECAY: tl.constexpr):
    place = tl.program_id(0) * 256 + tl.arange(0, 256)
    there = place < n
    moment = tl.load(m + place, mask=there, other=0) * b1
    square = tl.load(v + place, mask=there, other=0) * b2
    weight = tl.load(p + place, mask=there, other=0).to(tl.float32)
    slope = tl.load(g + place, mask=there, other=0).to(tl.float32)
    if DECAY:
        slope += first * weight
    moment += slope * (1 - b1)
    square += slope * slope * (1 - b2)
    tl.store(m + place, moment, mask=there)
    tl.store(v + place, square, mask=there)
    weight = weight * second - lr * moment / (tl.sqrt(square) / root + eps)
    tl.store(p + place, weight, mask=there)


@answers.right
def smaller_blocks(p, g, m, v, step, lr, betas, eps, decay, decoupled):
    root = (1 - betas[1] ** step) ** 0.5
    plain_kernel[(triton.cdiv(p.numel(), 256),)](
        p, g, m, v, p.numel(), decay, 1.0 - lr * decay if decoupled else 1.0, root,
        lr / (1 - betas[0] ** step), betas[0], betas[1], eps, DECAY=not decoupled and decay > 0,
    )  # fmt: skip


@triton.jit
def looping_kernel(
    p, g, m, v, n, lr, b1, b2, c1, c2, eps, decay, DECOUPLED: tl.constexpr, B: tl.constexpr
):
    for first in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
        place = first + tl.arange(0, B)
        there = place < n
        a, b, c = adam_rule(
            tl.load(p + place, mask=there).to(tl.float32),
            tl.load(g + place, mask=there).to(tl.float32),
            tl.load(m + place, mask=there),
            tl.load(v + place, mask=there),
            lr, b1, b2, c1, c2, eps, decay, DECOUPLED,
        )  # fmt: skip
        tl.store(p + place, a, mask=there)
        tl.store(m + place, b, mask=there)
        tl.store(v + place, c, mask=there)


@answers.right
def two_programs(p, g, m, v, step, lr, betas, eps, decay, decoupled):
    b1, b2 = betas
    looping_kernel[(2,)](
        p, g, m, v, p.numel(), lr, b1, b2, 1 - b1**step, 1 - b2**step, eps, decay, decoupled, 128
    )


@answers.right
def flattened_first(p, g, m, v, step, lr, betas, eps, decay, decoupled):
    p, g, m, v = (t.view(-1) for t in (p, g, m, v))
    answers.reference()(p, g, m, v, step, lr, betas, eps, decay, decoupled)


@triton.jit
def late_kernel(p, g, m, v, n, step, lr, b1, b2, eps, decay, DECOUPLED: tl.constexpr):
    place = tl.program_id(0) * 512 + tl.arange(0, 512)
    there = place < n
    c1 = 1 - tl.exp(step * tl.log(b1 + 0.0 * tl.load(m)))
    c2 = 1 - tl.exp(step * tl.log(b2 + 0.0 * tl.load(v)))
    a, b, c = adam_rule(
        tl.load(p + place, mask=there).to(tl.float32),
        tl.load(g + place, mask=there).to(tl.float32),
        tl.load(m + place, mask=there),
        tl.load(v + place, mask=there),
        lr, b1, b2, c1, c2, eps, decay, DECOUPLED,
    )  # fmt: skip
    tl.store(p + place, a, mask=there)
    tl.store(m + place, b, mask=there)
    tl.store(v + place, c, mask=there)


@answers.right
def powers_in_the_kernel(p, g, m, v, step, lr, betas, eps, decay, decoupled):
    late_kernel[(triton.cdiv(p.numel(), 512),)](
        p, g, m, v, p.numel(), float(step), lr, *betas, eps, decay, DECOUPLED=decoupled
    )


@answers.right
def decay_by_a_factor(p, g, m, v, step, lr, betas, eps, decay, decoupled):
    first = 0.0 if decoupled else decay
    second = 1.0 - lr * decay if decoupled else 1.0
    plain_kernel[(-(-p.numel() // 256), 1, 1)](
        p, g, m, v, p.numel(), first, second, (1 - betas[1] ** step) ** 0.5,
        lr / (1 - betas[0] ** step), *betas, eps, DECAY=True,
    )  # fmt: skip
