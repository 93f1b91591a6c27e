"""Answers to `chunked_cross_entropy`."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from parlab_staff.answers import Answers

answers = Answers("chunked_cross_entropy")

SHARE = "share = counts / counts.sum()"
SOFTMAX = "torch.log_softmax(scores, 1, out=scores)"
OF_WEIGHT = "of_weight.addmm_(scores.T, x)"
KEEP = "ctx.save_for_backward(of_hidden, of_weight)"
SAVED = "of_hidden, of_weight = ctx.saved_tensors"
BACK = "return of_hidden.mul_(gradient), of_weight.mul_(gradient), None, None"
BUFFER = "buffer = hidden.new_empty(min(chunk_size, len(hidden)), len(weight))"
RAW = "(scores.exp() / scores.exp().sum(1, keepdim=True)).log()"

APPLY = "return ChunkedCrossEntropy.apply(hidden, weight, targets, chunk_size)"

for mistake, name, *edits in (
    ("wrong_type", "a_number", (APPLY, APPLY + ".item()")),
    (None, "detached", (APPLY, APPLY + ".detach()")),
    ("ignored_in_mean", "divided_by_all", (SHARE, "share = counts / len(counts)")),
    ("not_scaled", "not_scaled", (BACK, "return of_hidden, of_weight, None, None")),
    (None, "replaced", (OF_WEIGHT, "of_weight = scores.T @ x")),
    ("not_a_number", "plain_softmax", (SOFTMAX, f"scores.copy_({RAW})")),
    (
        None,
        "kept_without_autograd",
        (KEEP, "ctx.kept = of_hidden, of_weight"),
        (SAVED, "of_hidden, of_weight = ctx.kept"),
    ),
    (
        None,
        "gradient_written",
        (KEEP, KEEP + "\n        ctx.weight = weight"),
        (
            BACK,
            "ctx.weight.grad = of_weight.mul_(gradient)\n"
            "        return of_hidden.mul_(gradient), None, None, None",
        ),
    ),
    (
        None,
        "own_chunk_size",
        ("ctx, hidden, weight, targets, chunk_size", "ctx, hidden, weight, targets, _"),
        ("counts = targets != -100", "counts, chunk_size = targets != -100, 64"),
    ),
    (
        "all_logits",
        "all_probabilities_kept",
        (
            OF_WEIGHT,
            OF_WEIGHT + "\n            ctx.kept = [*getattr(ctx, 'kept', []), scores.half()]",
        ),
    ),
    (
        "argument_changed",
        "targets_clamped",
        ("target = targets[rows, None].clamp(min=0)", "target = targets[rows, None].clamp_(min=0)"),
    ),
):
    answers.edit(mistake, name, *edits)

answers.right_edit(
    "all_at_once_if_it_fits", (BUFFER, BUFFER.replace("min(chunk_size, len(hidden))", "chunk_size"))
)
answers.right_edit(
    "scaled_in_new_memory", (BACK, "return of_hidden * gradient, of_weight * gradient, None, None")
)
answers.right_edit(
    "only_what_is_needed",
    (OF_WEIGHT, "if ctx.needs_input_grad[1]:\n                of_weight.addmm_(scores.T, x)"),
)


@answers.wrong("all_logits")
def plain(hidden, weight, targets, chunk_size):
    return F.cross_entropy(hidden @ weight.T, targets)


@answers.wrong("library_call")
def library(hidden, weight, targets, chunk_size):
    options = torch.nn.LinearCrossEntropyOptions(
        chunking_method=None, batch_chunk_size=chunk_size, allow_retain_graph=True
    )
    return F.linear_cross_entropy(hidden, weight, targets, options=options)


def losses(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum")


@answers.wrong("all_logits")
def loop(hidden, weight, targets, chunk_size):
    parts = zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True)
    return sum(losses(x, weight, y) for x, y in parts) / (targets != -100).sum()


@answers.wrong("mean_of_means")
def mean_of_chunks(hidden, weight, targets, chunk_size):
    parts = list(zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True))
    return sum(F.cross_entropy(x @ weight.T, y) for x, y in parts) / len(parts)


@answers.wrong("not_scaled")
def backward_in_the_forward_pass(hidden, weight, targets, chunk_size):
    """Writes .grad itself, and returns a loss that gives zero gradients."""
    count, total = (targets != -100).sum(), hidden.new_zeros(())
    leaf, own = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    for x, y in zip(leaf.split(chunk_size), targets.split(chunk_size), strict=True):
        loss = losses(x, own, y) / count
        loss.backward()
        total = total + loss.detach()
    for one, gradient in ((hidden, leaf.grad), (weight, own.grad)):
        if one.requires_grad and one.is_leaf:
            one.grad = gradient
    return total + 0 * (hidden.sum() + weight.sum())


@answers.right
def checkpointed(hidden, weight, targets, chunk_size):
    parts = zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True)
    total = sum(checkpoint(losses, x, weight, y, use_reentrant=False) for x, y in parts)
    return total / (targets != -100).sum()


class ByAutograd(torch.autograd.Function):
    """Lets autograd differentiate each chunk in the forward pass."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk_size):
        count, total = (targets != -100).sum(), hidden.new_zeros(())
        of_hidden, of_weight = [], torch.zeros_like(weight)
        for x, y in zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True):
            with torch.enable_grad():
                leaf, own = x.detach().requires_grad_(), weight.detach().requires_grad_()
                loss = losses(leaf, own, y) / count
            one, other = torch.autograd.grad(loss, (leaf, own))
            of_hidden.append(one)
            of_weight += other
            total += loss.detach()
        ctx.gradients = torch.cat(of_hidden), of_weight
        return total

    @staticmethod
    def backward(ctx, gradient):
        needed = zip(ctx.gradients, ctx.needs_input_grad[:2], strict=True)
        return *(g * gradient if n else None for g, n in needed), None, None


@answers.right
def by_autograd(hidden, weight, targets, chunk_size):
    return ByAutograd.apply(hidden, weight, targets, chunk_size)
