"""Answers to `ulysses_attention`."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("ulysses_attention")
exchange = answers.reference("exchange")

FLAT = ".movedim(0, 2).flatten(2, 3)"
HEADS = ".movedim(0, 1).flatten(1, 2).transpose(1, 2)"
REFUSAL = "if q.shape[2] % ranks:"
LEFT_OUT = "q, k, v = (x[:, :, : x.shape[2] // ranks * ranks] for x in (q, k, v))"

answers.edit(
    "batch_mixed",
    "viewed",
    (FLAT, ".movedim(0, 1).reshape(3, len(q), -1, q.shape[2] // ranks, q.shape[3])"),
)
answers.edit(
    "heads_mixed", "heads_interleaved", (HEADS, ".movedim(0, 2).flatten(1, 2).transpose(1, 2)")
)
answers.edit(None, "never_masked", ("is_causal=causal", ""))
answers.edit("not_refused", "heads_left_out", (REFUSAL, f"{LEFT_OUT}\n    if False:"))
answers.edit(
    None, "refused_too_late", (f"{REFUSAL}\n", f"dist.barrier(group=group)\n    {REFUSAL}\n")
)
answers.edit("argument_changed", "in_place", (REFUSAL, f"q.detach().mul_(1.5)\n    {REFUSAL}"))


def _swap(x, group):
    x = x.contiguous()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received


@answers.wrong("no_autograd")
def plain_all_to_all(q, k, v, causal, group):
    ranks = group.size()
    x = torch.stack([q, k, v]).detach().unflatten(3, (ranks, -1)).movedim(3, 0)
    x = _swap(x, group).movedim(0, 2).flatten(2, 3)
    y = F.scaled_dot_product_attention(*x.transpose(2, 3), is_causal=causal)
    y = _swap(y.unflatten(2, (ranks, -1)).movedim(2, 0), group)
    return y.movedim(0, 1).flatten(1, 2).transpose(1, 2)


def _with(swap):
    """Return an attention that exchanges rows by `swap(x, group)`."""

    def attention(q, k, v, causal, group):
        ranks = group.size()
        batch, tokens, heads, size = q.shape
        if heads % ranks:
            raise ValueError(f"`q` has {heads} heads, which {ranks} ranks cannot share")
        x = torch.cat([q, k, v], dim=-1).view(batch, tokens, ranks, heads // ranks, 3 * size)
        x = swap(x.permute(2, 0, 1, 3, 4), group)
        x = x.transpose(0, 1).reshape(batch, tokens * ranks, heads // ranks, 3 * size)
        q, k, v = x.transpose(1, 2).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(size)
        if causal:
            later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2)
        parts = y.unflatten(1, (ranks, tokens)).movedim(1, 0)
        return torch.cat(swap(parts, group).unbind(), dim=2)

    return attention


class NotSentBack(torch.autograd.Function):
    """An all-to-all whose backward pass leaves the gradient where it is."""

    @staticmethod
    def forward(ctx, x, group):
        return _swap(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@answers.wrong(None)
def gradient_as_it_is(q, k, v, causal, group):
    return _with(NotSentBack.apply)(q, k, v, causal, group)


class NotContiguous(torch.autograd.Function):
    """An all-to-all of tensors as they are in memory."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x, group=group)
        return received

    @staticmethod
    def backward(ctx, gradient):
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient, group=ctx.group)
        return received, None


@answers.wrong("not_contiguous")
def as_it_is_in_memory(q, k, v, causal, group):
    return _with(NotContiguous.apply)(q, k, v, causal, group)


@answers.wrong("default_group")
def default_group(q, k, v, causal, group):
    return _with(lambda x, _: exchange(x, dist.group.WORLD))(q, k, v, causal, group)


class Gather(torch.autograd.Function):
    """All parts of the sequence; the gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x, group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        group = ctx.group
        total = gradient.contiguous()
        dist.all_reduce(total, group=group)
        return total.chunk(group.size(), dim=1)[group.rank()], None


@answers.wrong("sends_more")
def gathers_keys(q, k, v, causal, group):
    """Gathers everything on every rank, and computes all heads of its own tokens."""
    q, k, v = (Gather.apply(x, group).transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    return y.chunk(group.size(), dim=1)[group.rank()]


class SwapMessages(torch.autograd.Function):
    """An all-to-all that is made of messages."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return SwapMessages.swapped(x, group)

    @staticmethod
    def swapped(x, group):
        x, rank, ranks = x.contiguous(), group.rank(), group.size()
        received = torch.empty_like(x)
        received[rank] = x[rank]
        members = dist.get_process_group_ranks(group)
        works = []
        for step in range(1, ranks):
            to, source = (rank + step) % ranks, (rank - step) % ranks
            works.append(dist.isend(x[to], members[to], group=group))
            works.append(dist.irecv(received[source], members[source], group=group))
        for work in works:
            work.wait()
        return received

    @staticmethod
    def backward(ctx, gradient):
        return SwapMessages.swapped(gradient, ctx.group), None


@answers.right
def messages(q, k, v, causal, group):
    return _with(SwapMessages.apply)(q, k, v, causal, group)


@answers.right
def heads_first_and_contiguous(q, k, v, causal, group):
    return _with(exchange)(q, k, v, causal, group).contiguous()


@answers.right
def every_nth_head(q, k, v, causal, group):
    """Rank r computes the heads r, r + N, …, and puts them back in their places."""
    ranks = group.size()
    if q.shape[2] % ranks:
        raise ValueError(f"{q.shape[2]} heads on {ranks} ranks")
    x = torch.stack([q, k, v]).unflatten(3, (-1, ranks)).movedim(4, 0)
    q, k, v = exchange(x, group).movedim(0, 2).flatten(2, 3).transpose(2, 3)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    y = exchange(y.unflatten(2, (ranks, -1)).movedim(2, 0), group)
    return y.permute(1, 3, 2, 0, 4).flatten(2, 3)
