"""Answers to `adam_step`."""

import torch

from parlab_staff.answers import Answers

answers = Answers("adam_step")
reference = answers.reference()

DECAY = "p = p - lr * decay * p"
COUPLED = "g = g + decay * p"
ROOT = "(tl.sqrt(v / correction2) + eps)"
MOVE = f"p = p - lr * (m / correction1) / {ROOT}"
MASK = "offsets, offsets < n,"
OFFSETS = "offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)"
LOAD_G = "g = tl.load(g_pointer + offsets, mask=mask).to(tl.float32)"
LOAD_P = "p = tl.load(p_pointer + offsets, mask=mask).to(tl.float32)"
STORE_V = "tl.store(v_pointer + offsets, v, mask=mask)"
STORE_G = "tl.store(g_pointer + offsets, 2 * g, mask=mask)"
N = "n, (beta1, beta2) = parameter.numel(), betas"
POWERS = "1 - beta1**step, 1 - beta2**step"
CALL = "adam_kernel[(triton.cdiv(n, 1024),)]("
FLATTENED = (
    N,
    f"{N}\n    parameter, gradient = parameter.view(-1), gradient.view(-1)"
    "\n    exp_avg, exp_avg_sq = exp_avg.view(-1), exp_avg_sq.view(-1)",
)
LOGARITHM = "tl.log(1 - share{0} + tl.zeros((1,), tl.float32))"
POWER = f"correction{{0}} = 1 - tl.exp(correction{{0}} * {LOGARITHM})"
LATE_DECAY = "p = p - lr * (decay * p if DECOUPLED else 0.0) - "
BY_TORCH = f"if decoupled:\n        parameter.mul_(1 - lr * weight_decay)\n    {CALL}"
ROUNDED = "p = (p - lr * decay * p).to(p_pointer.dtype.element_ty).to(tl.float32)"
ROUNDED_TWICE = f"{LOAD_P}\n    {ROUNDED} if DECOUPLED else p"
AGAIN = f"{LOAD_G}\n    g = (g + {LOAD_G.removeprefix('g = ')}) / 2"

answers.edit("outside", "no_mask", (MASK, "offsets, offsets >= 0,"))
answers.edit("eps_inside", "eps_in_the_root", (ROOT, "tl.sqrt(v / correction2 + eps)"))
answers.edit("no_correction", "uncorrected", (POWERS, "1.0, 1.0"))
answers.edit("coupled", "always_coupled", (DECAY, COUPLED))
answers.edit("decoupled", "always_decoupled", (COUPLED, DECAY))
answers.edit("argument_changed", "gradient_too", (STORE_V, f"{STORE_V}\n    {STORE_G}"))
answers.edit(None, "decayed_by_torch", (DECAY, "p = p"), (CALL, BY_TORCH), says="before the kernel")
answers.edit(None, "rounded_twice", (DECAY, "p = p"), (LOAD_P, ROUNDED_TWICE))
answers.edit(None, "loaded_again", (LOAD_G, AGAIN), says="avoid needless loads")

answers.right_edit("flattened", FLATTENED)
answers.right_edit("decayed_last", (DECAY, "p = p"), (MOVE, MOVE.replace("p = p - ", LATE_DECAY)))
answers.right_edit(
    "root_of_the_correction",
    (ROOT, "(tl.sqrt(v) / correction2 + eps)"),
    (POWERS, "1 - beta1**step, (1 - beta2**step) ** 0.5"),
)
answers.right_edit(
    "powers_in_the_kernel",
    (POWERS, "float(step), float(step)"),
    (OFFSETS, f"{OFFSETS}\n    " + POWER.format(1) + "\n    " + POWER.format(2)),
)
answers.right_edit(
    "last_block_first",
    (OFFSETS, OFFSETS.replace("tl.program_id(0)", "(tl.num_programs(0) - 1 - tl.program_id(0))")),
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


@answers.wrong("not_by_kernel")
def torch_in_the_end(p, g, m, v, *settings):
    reference(*(torch.zeros_like(t) for t in (p, g, m, v)), *settings)
    step_of_torch(p, g, m, v, *settings)
