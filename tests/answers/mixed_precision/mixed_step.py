"""Answers to `mixed_step`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("mixed_step")

BACKWARD = "(loss * scaler.scale).backward()"
GRADIENTS = "[copy.grad for copy in weights.master if copy.grad is not None]"
REDUCE = "reduce_halves(gradients, torch.float16, group)"
UNSCALE = "overflow = scaler.unscale(gradients)"
WHEN = "if not overflow:"
CLIP = "torch.nn.utils.clip_grad_norm_(weights.master, max_norm)"
STEP = "weights.step()"
UPDATE = "scaler.update(overflow)"
RETURN = "return not overflow"
OWN = "bad = not all(bool(g.isfinite().all()) for g in gradients)"

LEAVE = OWN + "\n    if bad:\n        scaler.update(True)\n        return False\n    "
AGREED = (
    "flag = torch.tensor(float(scaler.unscale(gradients)))\n"
    "    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)\n    "
)
MESSAGE = (
    "\n    flag = torch.tensor(float(bad))\n"
    "    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)\n    "
)
BY_NORM = "\n    overflow = not torch.nn.utils.get_total_norm(gradients).isfinite()"
FLAG = "overflow = bool(flag)"
TWICE = (
    "\n    for _ in range(2):\n        flag = torch.tensor([float(overflow)])\n"
    "        dist.all_reduce(flag, group=group)"
)
CLEANED = "for gradient in gradients:\n        gradient.nan_to_num_(0, 0, 0)\n    if True:"
ZEROS = (
    "for copy in weights.master:\n        if copy.grad is None:\n"
    "            copy.grad = torch.zeros_like(copy)\n    "
)
EACH = "for m in weights.master:\n            " + CLIP.replace("weights.master", "[m]")
SCALED_CLIP = CLIP.replace("max_norm)", "max_norm * scaler.scale)")
NO_CLIP = ("        " + CLIP + "\n", "")
NO_UPDATE = ("    " + UPDATE + "\n    return", "    return")
HALVES = REDUCE.replace("gradients,", "[g.clone() for g in gradients],")

for mistake, name, *edits in (
    (
        "skips_alone",
        "own_overflow_only",
        (REDUCE, OWN + "\n    " + REDUCE),
        (UNSCALE, "scaler.unscale(gradients)\n    overflow = bad"),
    ),
    ("leaves_alone", "leaves_early", (REDUCE, LEAVE + REDUCE)),
    ("stepped_anyway", "always_steps", (WHEN, "if True:")),
    (None, "never_updated", (UPDATE, "pass")),
    (None, "updated_when_taken", (STEP, STEP + "\n        " + UPDATE), NO_UPDATE),
    (None, "optimizer_alone", (STEP, "weights.optimizer.step()")),
    ("clipped_while_scaled", "clipped_in_scale", (UNSCALE, CLIP + "\n    " + UNSCALE), NO_CLIP),
    ("clipped_before_the_mean", "own_clip", (REDUCE, SCALED_CLIP + "\n    " + REDUCE), NO_CLIP),
    ("unscaled_before_the_mean", "unscaled_early", (REDUCE, AGREED + REDUCE), (UNSCALE, FLAG)),
    (None, "zeros_for_gradients", (WHEN, CLEANED)),
    (None, "updated_before_clipping", (WHEN, UPDATE + "\n    " + WHEN), NO_UPDATE),
    (None, "as_bfloat16", (REDUCE, REDUCE.replace("float16", "bfloat16"))),
    (None, "agreed_twice", (UNSCALE, UNSCALE + TWICE)),
    (None, "zeros_for_none", (REDUCE, ZEROS + REDUCE)),
    (None, "each_tensor", (CLIP, EACH)),
    (None, "scale_set_by_hand", (UPDATE, UPDATE + "\n    scaler.scale *= 2")),
    (None, "not_clipped", (CLIP, "pass")),
    (None, "never_unscaled", (UNSCALE, OWN.replace("bad", "overflow")), (CLIP, SCALED_CLIP)),
    (None, "plain_loss", (BACKWARD, "loss.backward()")),
    (
        None,
        "unscaled_before_collecting",
        ("    weights.collect()\n", ""),
        (GRADIENTS, "[p.grad for p in weights.parameters if p.grad is not None]"),
        (UNSCALE, UNSCALE + "\n    weights.collect()"),
    ),
    (None, "sent_twice", (REDUCE, REDUCE + "\n    " + HALVES)),
    (None, "only_the_overflow_is_sent", (REDUCE, "pass"), (UNSCALE, AGREED + FLAG)),
    ("nothing_sent", "alone", (REDUCE, "pass")),
    (None, "whether_skipped", (RETURN, "return bool(overflow)")),
    ("returns_none", "no_return", (RETURN, "pass")),
):
    answers.edit(mistake, name, *edits)

answers.right_edit(
    "agreed_by_a_message",
    (REDUCE, OWN + MESSAGE + REDUCE),
    (UNSCALE, "scaler.unscale(gradients)\n    " + FLAG),
)
answers.right_edit("by_the_norm", (UNSCALE, UNSCALE.replace("overflow = ", "") + BY_NORM))
answers.right_edit(
    "clipped_even_if_skipped",
    NO_CLIP,
    (WHEN, CLIP + "\n    " + WHEN),
    (RETURN, "weights.optimizer.zero_grad()\n    return 1 - overflow"),
)
answers.right_edit(
    "clipped_to_the_scaled_limit",
    (UNSCALE, OWN.replace("bad", "overflow")),
    (CLIP, SCALED_CLIP + "\n        for g in gradients:\n            g /= scaler.scale"),
)


@answers.right
def by_hand(weights, scaler, loss, max_norm, group):
    loss.backward(torch.tensor(scaler.scale))
    weights.collect()
    gradients = [m.grad for m in weights.master if m.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients]).div(group.size()).half()
    dist.all_reduce(flat, group=group)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    overflow = scaler.unscale(gradients)
    if overflow:
        scaler.update(True)
        return False
    norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
    for gradient in gradients:
        gradient *= min(1.0, max_norm / norm)
    weights.step()
    scaler.update(False)
    return True
