"""Answers to `scaled_step`."""

import torch

from parlab.answers import Answers

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

answers.edit("unscaled_after_clipping", "clipped_first", (UNSCALE + CLIP, CLIP + UNSCALE))
answers.edit("norm_of_scaled", "clipped_in_scale", (UNSCALE, ""))
answers.edit(
    "zero_by_zero",
    "divided_by_norm",
    (
        CLIP,
        CLIP.replace("max_norm)", "float('inf'))")
        + "    for copy in weights.master:\n"
        + "        if copy.grad is not None:\n"
        + "            copy.grad *= min(norm.item(), max_norm)\n"
        + "            copy.grad /= norm\n",
    ),
)
answers.edit(
    "not_unscaled",
    "scaled_limit",
    (UNSCALE, ""),
    (CLIP, CLIP.replace("max_norm)", "1e9) / scale")),
)
answers.edit("not_scaled", "plain_loss", (BACKWARD, "loss.backward()"), (UNSCALE, ""))
answers.edit("not_scaled", "divided_anyway", (BACKWARD, "loss.backward()"))
answers.edit(
    "not_scaled",
    "gradients_scaled_afterwards",
    (BACKWARD, "loss.backward()"),
    (UNSCALE, UNSCALE.replace("/= scale", "*= scale") + UNSCALE),
)
answers.edit(
    "unscaled_in_16_bits",
    "divided_before_collecting",
    (COLLECT, "for p in weights.parameters:\n        if p.grad is not None:\n"
              "            p.grad /= scale\n    " + COLLECT),
    (UNSCALE, ""),
)  # fmt: skip
answers.edit(
    "rate_scaled",
    "rate_divided",
    (UNSCALE, "    weights.optimizer.param_groups[0]['lr'] /= scale\n"),
    (CLIP, CLIP.replace("max_norm", "max_norm * scale")),
)
answers.edit(
    "not_clipped", "norm_only", (CLIP, "    norm = torch.nn.utils.clip_grad_norm_("
    "weights.master, float('inf'))\n"),
)  # fmt: skip
answers.edit(
    "clipped_one_by_one",
    "each_tensor",
    (
        CLIP,
        CLIP.replace("max_norm", "float('inf')")
        + "    for copy in weights.master:\n"
        + "        torch.nn.utils.clip_grad_norm_([copy], max_norm)\n",
    ),
)
answers.edit("norm_of_scaled", "norm_of_scaled", (RETURN, "return norm.item() * scale"))
answers.edit("norm_after", "norm_after", (RETURN, "return min(norm.item(), max_norm)"))
answers.edit("no_step", "no_step", (STEP, "pass"))
answers.edit("optimizer_alone", "optimizer_alone", (STEP, "weights.optimizer.step()"))
answers.edit(None, "two_steps", (STEP, STEP + "\n    " + STEP))
answers.edit(
    "gradient_invented",
    "zeros_for_none",
    (UNSCALE, UNSCALE + "        else:\n            copy.grad = torch.zeros_like(copy)\n"),
)
answers.edit(
    "rate_scaled",
    "rate_restored",
    (UNSCALE, ""),
    (CLIP, CLIP.replace("max_norm)", "max_norm * scale) / scale")),
    (STEP, "for g in weights.optimizer.param_groups:\n        g['lr'] /= scale\n"
           "    weights.step()\n"
           "    for g in weights.optimizer.param_groups:\n        g['lr'] *= scale"),
)  # fmt: skip
FIRST = CLIP.replace("weights.master", "weights.optimizer.param_groups[0]['params']")
answers.edit("first_group_only", "first_group", (CLIP, FIRST))
answers.edit("not_clipped", "last_group", (CLIP, FIRST.replace("[0]", "[-1]")))
answers.edit(
    "clipped_by_value",
    "each_number",
    (CLIP, CLIP.replace("max_norm", "float('inf')")
     + "    torch.nn.utils.clip_grad_value_(weights.master, max_norm)\n"),
)  # fmt: skip
answers.edit(
    "other_norm", "largest_number", (CLIP, CLIP.replace("max_norm)", "max_norm, float('inf'))"))
)
answers.edit("overflows", "loss_of_16_bits", (BACKWARD, "(loss.half() * scale).backward()"))
answers.edit(
    "raises",
    "divided_by_nothing",
    (CLIP, CLIP + "    max_norm / norm.item()\n"),
    says="all gradients are zero",
)
answers.edit("wrong_type", "a_tensor", (RETURN, "return norm"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit(
    "raises", "none_divided", (UNSCALE, UNSCALE.replace("if copy.grad is not None", "if True"))
)


@answers.wrong("scaled_up")
def always_that_long(weights, loss, scale, max_norm):
    (loss * scale).backward()
    weights.collect()
    there = [m.grad for m in weights.master if m.grad is not None]
    norm = torch.cat([g.flatten() for g in there]).norm() / scale
    for gradient in there:
        gradient *= max_norm / norm / scale
    weights.step()
    return norm.item()


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


@answers.right
def gradient_of_the_backward(weights, loss, scale, max_norm):
    """backward() takes the gradient that it starts from."""
    loss.backward(torch.tensor(scale))
    weights.collect()
    there = [m.grad for m in weights.master if m.grad is not None]
    torch._foreach_div_(there, scale)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in there]))
    torch._foreach_mul_(there, (max_norm / norm).clamp(max=1.0).item())
    weights.step()
    return float(norm)


@answers.right
def library_s_norm(weights, loss, scale, max_norm):
    (scale * loss).backward()
    weights.collect()
    weights.optimizer.param_groups[0]["lr"] *= 1  # nothing
    for copy in weights.master:
        copy.grad = None if copy.grad is None else copy.grad / scale
    norm = torch.nn.utils.get_total_norm([m.grad for m in weights.master if m.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(weights.master, max_norm, norm)
    weights.step()
    return norm.item()


@answers.right
def clipped_in_scale_by_a_scaled_limit(weights, loss, scale, max_norm):
    """Clipping the scaled gradient to the scaled limit is the same."""
    (loss * scale).backward()
    weights.collect()
    norm = torch.nn.utils.clip_grad_norm_(weights.master, max_norm * scale) / scale
    for copy in weights.master:
        if copy.grad is not None:
            copy.grad.div_(scale)
    weights.step()
    return norm.item()


@answers.right
def a_multiplication(weights, loss, scale, max_norm):
    (loss * scale).backward()
    weights.collect()
    with torch.no_grad():
        for copy in filter(lambda m: m.grad is not None, weights.master):
            copy.grad *= 1 / scale
    norm = torch.nn.utils.clip_grad_norm_(weights.master, max_norm, foreach=False)
    weights.step()
    weights.optimizer.zero_grad()
    return norm.item()
