"""Answers to `scaled_step`."""

from parlab_staff.answers import Answers

answers = Answers("scaled_step")

BACKWARD = "(loss * scale).backward()"
COLLECT = "weights.collect()"
UNSCALE = """    for copy in weights.master:
        if copy.grad is not None:
            copy.grad /= scale
"""
CLIP = "    norm = torch.nn.utils.clip_grad_norm_(weights.master, max_norm)\n"
STEP = "weights.step()"
RETURN = "return norm.item()"

UNSCALED = UNSCALE + CLIP
NORM = CLIP.replace("max_norm", "float('inf')")  # computes it, and clips nothing
FIRST = CLIP.replace("weights.master", "weights.optimizer.param_groups[0]['params']")
SCALED_LIMIT = CLIP.replace("max_norm)", "max_norm * scale)")
PLAIN = "loss.backward()"
ALL_NORMS = (
    "    norms = torch.stack([m.grad.norm() for m in weights.master if m.grad is not None])\n"
    "    norm = norms.norm()\n"
    "    torch.nn.utils.clip_grads_with_norm_(weights.master, max_norm, norms.{}())\n"
)
EACH = "    for copy in weights.master:\n        torch.nn.utils.clip_grad_norm_([copy], max_norm)\n"
RATES = "for g in weights.optimizer.param_groups:\n        g['lr'] {}= scale\n    "
DIVIDED = (
    "for p in weights.parameters:\n        if p.grad is not None:\n"
    "            p.grad /= scale\n    "
)
BY_NORM = (
    "    for copy in weights.master:\n        if copy.grad is not None:\n"
    "            copy.grad *= min(norm.item(), max_norm)\n            copy.grad /= norm\n"
)

for mistake, name, *edits in (
    ("clipped_while_scaled", "clipped_first", (UNSCALED, CLIP + UNSCALE)),
    (None, "clipped_in_scale", (UNSCALE, "")),
    ("not_scaled", "plain_loss", (BACKWARD, PLAIN), (UNSCALE, "")),
    ("not_scaled", "divided_anyway", (BACKWARD, PLAIN)),
    ("unscaled_in_16_bits", "divided_early", (COLLECT, DIVIDED + COLLECT), (UNSCALE, "")),
    (None, "rate_divided", (UNSCALE, "    " + RATES.format("/")[:-4])),
    (
        None,
        "rate_restored",
        (UNSCALED, SCALED_LIMIT.replace("scale)", "scale) / scale")),
        (STEP, RATES.format("/") + STEP + "\n    " + RATES.format("*")[:-5]),
    ),
    (None, "each_tensor", (CLIP, NORM + EACH)),
    (None, "norm_after", (RETURN, "return min(norm.item(), max_norm)")),
    (None, "optimizer_alone", (STEP, "weights.optimizer.step()")),
    (None, "scaled_limit", (UNSCALED, CLIP.replace("max_norm)", "1e9) / scale"))),
    (None, "norm_only", (CLIP, NORM)),
    (None, "no_step", (STEP, "pass")),
    (None, "two_steps", (STEP, STEP + "\n    " + STEP)),
    (
        None,
        "zeros_for_none",
        (UNSCALE, UNSCALE + "        else:\n            copy.grad = torch.zeros_like(copy)\n"),
    ),
    (None, "first_group", (CLIP, FIRST)),
    (None, "last_group", (CLIP, FIRST.replace("[0]", "[-1]"))),
    (None, "largest_norm", (CLIP, ALL_NORMS.format("max"))),
    (None, "loss_of_16_bits", (BACKWARD, "(loss.half() * scale).backward()")),
    (None, "divided_by_norm", (CLIP, NORM + BY_NORM)),
    (
        None,
        "always_that_long",
        (CLIP, NORM + BY_NORM.replace("min(norm.item(), max_norm)", "max_norm")),
    ),
    ("wrong_type", "a_tensor", (RETURN, "return norm")),
    ("returns_none", "no_return", (RETURN, "pass")),
    ("raises", "none_divided", (UNSCALE, UNSCALE.replace("if copy.grad is not None", "if True"))),
):
    answers.edit(mistake, name, *edits)

answers.right_edit("gradient_of_the_backward", (BACKWARD, "loss.backward(torch.tensor(scale))"))
answers.right_edit("library_s_norm", (CLIP, ALL_NORMS.format("norm")))
answers.right_edit(
    "clipped_to_the_scaled_limit",
    (UNSCALED, SCALED_LIMIT.replace("scale)", "scale) / scale") + UNSCALE),
)
answers.right_edit(
    "multiplied",
    (UNSCALE, UNSCALE.replace("/= scale", "*= 1 / scale")),
    (CLIP, CLIP.replace("max_norm)", "max_norm, foreach=False)")),
    (STEP, STEP + "\n    weights.optimizer.zero_grad()"),
)


@answers.right
def by_hand(weights, loss, scale, max_norm):
    """Unscaling and clipping in one factor."""
    loss.mul(scale).backward()
    weights.collect()
    there = [m.grad for m in weights.master if m.grad is not None]
    norm = sum(float(g.double().square().sum()) for g in there) ** 0.5 / scale
    for gradient in there:
        gradient.mul_(min(1.0, max_norm / max(norm, 1e-30)) / scale)
    weights.step()
    return norm
