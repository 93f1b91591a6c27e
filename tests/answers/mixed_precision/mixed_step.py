"""Answers to `mixed_step`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("mixed_step")
REFERENCE = answers.reference()
reduce_halves = answers.reference("reduce_halves")

BACKWARD = "(loss * scaler.scale).backward()"
REDUCE = "reduce_halves(gradients, torch.float16, group)"
UNSCALE = "overflow = scaler.unscale(gradients)"
WHEN = "if not overflow:"
CLIP = "torch.nn.utils.clip_grad_norm_(weights.master, max_norm)"
STEP = "weights.step()"
UPDATE = "scaler.update(overflow)"
RETURN = "return not overflow"
OWN = "mine = not all(bool(g.isfinite().all()) for g in gradients)"

answers.edit(
    "skips_alone",
    "asked_before_the_reduction",
    (REDUCE, OWN + "\n    " + REDUCE),
    (UNSCALE, "scaler.unscale(gradients)\n    overflow = mine"),
)
answers.edit(
    "returns_before_the_reduction",
    "leaves_early",
    (
        REDUCE,
        OWN + "\n    if mine:\n        scaler.update(True)\n        return False\n    " + REDUCE,
    ),
)
answers.edit("stepped_anyway", "always_steps", (WHEN, "if True:"))
answers.edit(
    "weights_moved_in_a_skip",
    "zeros_for_gradients",
    (WHEN, "for gradient in gradients:\n        gradient.nan_to_num_(0, 0, 0)\n    if True:"),
)
answers.edit(
    "updated_before_the_step",
    "updated_first",
    (UNSCALE, "bad = not all(bool(g.isfinite().all()) for g in gradients)\n    "
              "scaler.update(bad)\n    " + UNSCALE),
    (UPDATE, "pass"),
)  # fmt: skip
answers.edit(
    "updated_before_the_step",
    "updated_before_clipping",
    (WHEN, UPDATE + "\n    " + WHEN),
    ("    " + UPDATE + "\n    return", "    return"),
)
answers.edit("not_updated", "never_updated", (UPDATE, "pass"))
answers.edit(
    "not_updated",
    "updated_when_taken",
    ("    " + UPDATE, "    if not overflow:\n        " + UPDATE),
)
answers.edit("updated_twice", "updated_twice", (STEP, STEP + "\n        " + UPDATE))
answers.edit("sent_as_bfloat16", "as_bfloat16", (REDUCE, REDUCE.replace("float16", "bfloat16")))
answers.edit(
    "too_many_messages",
    "agreed_twice",
    (
        UNSCALE,
        UNSCALE + "\n    for _ in range(2):\n        flag = torch.tensor([float(overflow)])\n"
        "        dist.all_reduce(flag, group=group)",
    ),
)
answers.edit(
    "gradient_invented",
    "zeros_for_none",
    (REDUCE, "for copy in weights.master:\n        if copy.grad is None:\n"
             "            copy.grad = torch.zeros_like(copy)\n    " + REDUCE),
)  # fmt: skip
answers.edit("optimizer_alone", "optimizer_alone", (STEP, "weights.optimizer.step()"))
answers.edit(
    "clipped_one_by_one",
    "each_tensor",
    (CLIP, "for m in weights.master:\n            " + CLIP.replace("weights.master", "[m]")),
)
answers.edit(
    "divided_twice", "divided_again", (BACKWARD, "(loss * scaler.scale / group.size()).backward()")
)
answers.edit(
    None, "scale_set_by_hand", (UPDATE, UPDATE + "\n    scaler.scale *= 2"), says="scaler.scale"
)
answers.edit("told_the_opposite", "told_taken", (UPDATE, "scaler.update(not overflow)"))
answers.edit(
    "clipped_before_unscaling",
    "clipped_in_scale",
    (UNSCALE, CLIP + "\n    " + UNSCALE),
    ("        " + CLIP + "\n", ""),
)
answers.edit(
    "clipped_before_the_mean",
    "each_its_own",
    (
        REDUCE,
        "torch.nn.utils.clip_grad_norm_(weights.master, max_norm * scaler.scale)\n    " + REDUCE,
    ),
    ("        " + CLIP + "\n", ""),
)
answers.edit("not_clipped", "not_clipped", (CLIP, "pass"))
answers.edit(
    "not_unscaled",
    "only_looked_at",
    (UNSCALE, "overflow = not all(bool(g.isfinite().all()) for g in gradients)"),
    (CLIP, "torch.nn.utils.clip_grad_norm_(weights.master, max_norm * scaler.scale)"),
)
answers.edit("not_scaled", "plain_loss", (BACKWARD, "loss.backward()"))
answers.edit(
    "unscaled_before_the_mean",
    "unscaled_and_agreed_before_the_reduction",
    (
        REDUCE,
        "flag = torch.tensor(float(scaler.unscale(gradients)))\n"
        "    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)\n    " + REDUCE,
    ),
    (UNSCALE, "overflow = bool(flag)"),
)
answers.edit(
    "unscaled_in_16_bits",
    "unscaled_before_collecting",
    ("    weights.collect()\n", ""),
    (
        "[copy.grad for copy in weights.master if copy.grad is not None]",
        "[p.grad for p in weights.parameters if p.grad is not None]",
    ),
    (UNSCALE, UNSCALE + "\n    weights.collect()"),
)
answers.edit(
    "summed",
    "summed",
    (UNSCALE, "for gradient in gradients:\n        gradient *= group.size()\n    " + UNSCALE),
)
answers.edit("returns_the_opposite", "whether_skipped", (RETURN, "return bool(overflow)"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit(
    "sent_too_much", "sent_twice", (REDUCE, REDUCE + "\n    reduce_halves([g.clone() for g in "
    "gradients], torch.float16, group)"),
)  # fmt: skip
answers.edit("nothing_sent", "alone", (REDUCE, "pass"))
answers.edit(
    "not_averaged",
    "only_the_overflow_is_sent",
    (REDUCE, "pass"),
    (
        UNSCALE,
        "flag = torch.tensor(float(scaler.unscale(gradients)))\n"
        "    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)\n"
        "    overflow = bool(flag)",
    ),
)


@answers.right
def agreed_by_a_message(weights, scaler, loss, max_norm, group):
    """Asked before the reduction, and all told."""
    (scaler.scale * loss).backward()
    weights.collect()
    gradients = [m.grad for m in weights.master if m.grad is not None]
    bad = torch.tensor(float(not all(bool(g.isfinite().all()) for g in gradients)))
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=group)
    reduce_halves(gradients, torch.float16, group)
    scaler.unscale(gradients)
    taken = not bad
    if taken:
        torch.nn.utils.clip_grad_norm_(weights.master, max_norm)
        weights.step()
    scaler.update(not taken)
    return taken


@answers.right
def told_by_the_norm(weights, scaler, loss, max_norm, group):
    """An infinite norm, or none, is an overflow."""
    (loss * scaler.scale).backward()
    weights.collect()
    there = [m for m in weights.master if m.grad is not None]
    reduce_halves([m.grad for m in there], torch.float16, group)
    scaler.unscale([m.grad for m in there])
    norm = torch.nn.utils.get_total_norm([m.grad for m in there])
    taken = bool(norm.isfinite())
    if taken:
        torch.nn.utils.clip_grads_with_norm_(there, max_norm, norm)
        weights.step()
    scaler.update(not taken)
    return taken


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


@answers.right
def clipped_even_if_skipped(weights, scaler, loss, max_norm, group):
    (loss * scaler.scale).backward()
    weights.collect()
    gradients = [m.grad for m in weights.master if m.grad is not None]
    reduce_halves(gradients, torch.float16, group)
    overflow = scaler.unscale(gradients)
    torch.nn.utils.clip_grad_norm_(gradients_of(weights), max_norm)
    overflow or weights.step()
    weights.optimizer.zero_grad()
    scaler.update(overflow)
    return 1 - overflow


def gradients_of(weights):
    return [m for m in weights.master if m.grad is not None]


@answers.right
def clipped_to_the_scaled_limit(weights, scaler, loss, max_norm, group):
    """Clipping the scaled mean to the scaled limit, and unscaling, is the same."""
    scale = scaler.scale
    (loss * scale).backward()
    weights.collect()
    there = gradients_of(weights)
    reduce_halves([m.grad for m in there], torch.float16, group)
    overflow = not all(bool(m.grad.isfinite().all()) for m in there)
    if not overflow:
        torch.nn.utils.clip_grad_norm_(there, max_norm * scale)
        for copy in there:
            copy.grad /= scale
        weights.step()
    scaler.update(overflow)
    return not overflow
