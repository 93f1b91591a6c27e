"""Answers to `adam_8bit_step`."""

import torch

from parlab.formats.dynamic import dynamic_map
from parlab_staff.answers import Answers

answers = Answers("adam_8bit_step")
quantize_blocks = answers.reference("quantize_blocks")
dequantize_blocks = answers.reference("dequantize_blocks")

STEP = 'step = state.get("step", 0) + 1'
ONE_COUNT = "step = adam_8bit_step.count = adam_8bit_step.count + 1 if state else 1"
FIRST = "if step == 1:"
OLD_M = 'm = dequantize_blocks(*state["m"], signed, block_size)'
MOVE_M = "m.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])"
ROOT = "denominator = (v / (1 - betas[1] ** step)).sqrt_().add_(eps)"
MOVE = "parameter.addcdiv_(m, denominator, value=-lr / (1 - betas[0] ** step))"
COUNT = 'state["step"] = step'
KEEP_M = 'state["m"] = quantize_blocks(m, signed, block_size)'
KEEP_V = 'state["v"] = quantize_blocks(v, unsigned, block_size)'
UNSIGNED = "unsigned = dynamic_map(False, parameter.device)"
ROUND = (
    f"{KEEP_M}\n    {KEEP_V}\n    {OLD_M}\n    "
    'v = dequantize_blocks(*state["v"], unsigned, block_size)\n    '
)

for mistake, name, *edits in (
    ("rounded_first", "rounded_first", (ROOT, ROUND + ROOT)),
    (
        None,
        "nothing_without_a_gradient",
        (STEP, "if not gradient.any():\n        return\n    " + STEP),
    ),
    (
        "not_corrected",
        "not_corrected",
        (ROOT, "denominator = v.sqrt().add_(eps)"),
        (MOVE, "parameter.addcdiv_(m, denominator, value=-lr)"),
    ),
    (
        "eps_in_root",
        "eps_in_root",
        (ROOT, ROOT.replace(".sqrt_().add_(eps)", ".add_(eps).sqrt_()")),
    ),
    (
        "eps_in_root",
        "square_of_eps",
        (ROOT, ROOT.replace(".sqrt_().add_(eps)", ".add_(eps**2).sqrt_()")),
    ),
    ("signed_map_for_v", "signed_map_for_v", (UNSIGNED, "unsigned = dynamic_map(True)")),
    ("float_states", "float_states_too", (COUNT, COUNT + '\n    state["float"] = m, v')),
    (None, "step_not_kept", (COUNT, "pass")),
    (None, "always_the_first_step", (COUNT, 'state["step"] = 1')),
    ("wrong_shape", "default_blocks", (STEP, STEP + "\n    block_size = 256")),
    (None, "default_betas", (STEP, STEP + "\n    betas = 0.9, 0.999")),
    ("argument_changed", "gradient_squared", (ROOT, "gradient.square_(); " + ROOT)),
    ("not_in_place", "not_in_place", (MOVE, MOVE.replace("addcdiv_", "addcdiv"))),
    (
        "not_in_place",
        "data_replaced",
        (
            MOVE,
            MOVE.replace("parameter.", "parameter.data = parameter.", 1).replace("cdiv_", "cdiv"),
        ),
    ),
    (None, "one_count_for_all", (STEP, ONE_COUNT)),
    (None, "root_is_kept", (KEEP_V, KEEP_V.replace("(v,", "(v.sqrt(),"))),
    (
        None,
        "only_the_codes_of_m",
        (KEEP_M, 'state["m"] = quantize_blocks(m, signed, block_size)[0]'),
    ),
):
    answers.edit(mistake, name, *edits)

answers.right_edit("lerp", (MOVE_M, "m = m.lerp(gradient, 1 - betas[0])"))
answers.right_edit(
    "cpu_maps", (UNSIGNED, "signed, unsigned = (dynamic_map(one) for one in (True, False))")
)
answers.right_edit("by_the_dict", (FIRST, "if not state:"))


@answers.right
def as_in_the_paper(parameter, gradient, state, lr, betas=(0.9, 0.999), eps=1e-8, block_size=256):
    state["step"] = t = state.get("step", 0) + 1
    maps = {"m": dynamic_map(True), "v": dynamic_map(False)}
    for key, beta, new in (("m", betas[0], gradient), ("v", betas[1], gradient**2)):
        old = 0.0
        if key in state:
            old = dequantize_blocks(*state[key], maps[key], block_size)
        state[key] = beta * old + (1 - beta) * new
    m_hat, v_hat = state["m"] / (1 - betas[0] ** t), state["v"] / (1 - betas[1] ** t)
    parameter -= lr * m_hat / (v_hat.sqrt() + eps)
    for key, levels in maps.items():
        state[key] = quantize_blocks(state[key], levels, block_size)


@answers.right
def zeros_are_quantized(
    parameter, gradient, state, lr, betas=(0.9, 0.999), eps=1e-8, block_size=256
):
    levels = [dynamic_map(signed) for signed in (True, False)]
    if not state:
        zeros = torch.zeros(parameter.shape)
        state.update(step=torch.tensor(0.0))
        state["m"], state["v"] = (quantize_blocks(zeros, one, block_size) for one in levels)
    state["step"] += 1
    t = state["step"].item()
    m, v = (
        dequantize_blocks(*state[k], one, block_size) for k, one in zip("mv", levels, strict=True)
    )
    m = (betas[0] * m.double() + (1 - betas[0]) * gradient.double()).float()
    v = (betas[1] * v.double() + (1 - betas[1]) * gradient.double() ** 2).float()
    size = lr * (1 - betas[1] ** t) ** 0.5 / (1 - betas[0] ** t)
    parameter.sub_(size * m / (v.sqrt() + eps * (1 - betas[1] ** t) ** 0.5))
    state["m"], state["v"] = (
        quantize_blocks(x, one, block_size) for x, one in zip((m, v), levels, strict=True)
    )
