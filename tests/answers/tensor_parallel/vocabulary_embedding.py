"""Answers to `vocabulary_embedding`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab.answers import Answers

answers = Answers("vocabulary_embedding")
Reference = answers.reference()

OWN = "embedding.weight.detach().chunk(group.size())[group.rank()]"
ROWS = "F.embedding(local_BS * inside_BS, self.weight) * inside_BS.unsqueeze(-1)"
LOCAL = "local_BS = tokens_BS - self.group.rank() * count"

answers.edit(
    "not_masked", "mask_forgotten", (ROWS, "F.embedding(local_BS * inside_BS, self.weight)")
)
answers.edit(
    "not_masked", "clamped", (ROWS, "F.embedding(local_BS.clamp(0, count - 1), self.weight)")
)
answers.edit("not_masked", "modulo", (ROWS, "F.embedding(tokens_BS % count, self.weight)"))
answers.edit("not_summed", "without_g", ("return self.reduce(rows_BSH)", "return rows_BSH"))
answers.edit(
    None,
    "size_not_named",
    ("{embedding.num_embeddings} tokens do not divide", "tokens do not divide"),
    says="does not name the size",
)
answers.edit("strided", "strided", (OWN, "embedding.weight.detach()[group.rank() :: group.size()]"))
answers.edit("not_own_memory", "a_view", ("own.clone()", "own"))
answers.edit(
    "memory_of_serial",
    "alone_the_table_itself",
    ("own.clone()", "own.clone() if group.size() > 1 else own"),
)
answers.edit(
    "kept_from_before",
    "mask_of_the_first_call",
    (
        "        rows_BSH =",
        '        self.inside_BS = getattr(self, "inside_BS", inside_BS)\n'
        "        inside_BS = inside_BS & self.inside_BS\n"
        "        rows_BSH =",
    ),
)
answers.edit(
    "sends_more",
    "asks_the_others",
    (
        "        return self.reduce(rows_BSH)",
        '        if self.reduce.__name__ == "<lambda>":\n'
        "            dist.all_reduce(rows_BSH.detach()[:1, :1].clone(), group=self.group)\n"
        "        return self.reduce(rows_BSH)",
    ),
)
answers.edit(
    "not_refused", "not_refused", ("if embedding.num_embeddings % group.size():", "if False:")
)
answers.edit(
    "argument_changed",
    "tokens_moved",
    (
        LOCAL,
        "tokens_BS -= self.group.rank() * count\n        local_BS = tokens_BS",
    ),
)
answers.edit("raises", "index_out_of_range", (ROWS, "F.embedding(local_BS, self.weight)"))
answers.edit(
    "own_reduce",
    "reduce_ignored",
    (
        "return self.reduce(rows_BSH)",
        "return f_and_g(self.group)[1](rows_BSH)",
    ),
)


@answers.wrong("trace")
class MaskedForwardOnly(Reference):
    """Zeros for the output, but the row that was looked up learns."""

    def forward(self, tokens_BS):
        count = len(self.weight)
        local = tokens_BS - self.group.rank() * count
        inside = (local >= 0) & (local < count)
        rows = F.embedding(local.clamp(0, count - 1), self.weight)
        rows = rows - (rows * ~inside.unsqueeze(-1)).detach()
        return self.reduce(rows)


@answers.wrong("hidden_split")
class HiddenCut(Reference):
    def __init__(self, embedding, group, reduce=None):
        super().__init__(embedding, group, reduce)
        columns = max(1, embedding.embedding_dim // 2)
        self.weight = nn.Parameter(embedding.weight.detach()[:, :columns].clone())

    def forward(self, tokens_BS):
        return self.reduce(F.embedding(tokens_BS, self.weight))


@answers.wrong("whole_weights")
class Whole(Reference):
    def __init__(self, embedding, group, reduce=None):
        super().__init__(embedding, group, reduce)
        self.weight = nn.Parameter(embedding.weight.detach().clone())

    def forward(self, tokens_BS):
        return self.reduce(F.embedding(tokens_BS, self.weight) / self.group.size())


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, group):
        ctx.group = group
        whole = own.new_empty(group.size() * len(own), own.shape[1])
        for _ in range(2):  # once more than it takes
            dist.all_gather_single(whole, own.contiguous(), group=group)
        dist.all_gather_single(torch.empty_like(whole.repeat(4, 1)), own.repeat(4, 1), group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(ctx.group.size())[ctx.group.rank()], None


@answers.wrong("weights_gathered")
class WeightsGathered(Reference):
    def forward(self, tokens_BS):
        whole = _GatherRows.apply(self.weight, self.group)
        return F.embedding(tokens_BS, whole)


@answers.wrong("kept_whole")
class KeepsIt(Reference):
    def __init__(self, embedding, group, reduce=None):
        super().__init__(embedding, group, reduce)
        self.serial = [embedding]


@answers.right
class OneHot(Reference):
    """A product with ones and zeros."""

    def forward(self, tokens_BS):
        first = self.group.rank() * len(self.weight)
        own = torch.arange(first, first + len(self.weight))
        return self.reduce((tokens_BS.unsqueeze(-1) == own).to(self.weight.dtype) @ self.weight)


@answers.right
class ZeroRow(Reference):
    """A row of zeros behind the last, for all tokens of others."""

    def forward(self, tokens_BS):
        count = len(self.weight)
        local = tokens_BS - self.group.rank() * count
        local = torch.where((local >= 0) & (local < count), local, count)
        return self.reduce(
            torch.cat([self.weight, self.weight.new_zeros(1, self.weight.shape[1])])[local]
        )


@answers.right
class MaskedFill(Reference):
    def forward(self, tokens_BS):
        count = len(self.weight)
        owner = torch.div(tokens_BS, count, rounding_mode="floor")
        rows = self.weight[tokens_BS % count]
        return self.reduce(rows.masked_fill((owner != self.group.rank()).unsqueeze(-1), 0.0))


@answers.right
class OnlyOwn(Reference):
    """Looks up no more than it has, and puts it in its place."""

    def forward(self, tokens_BS):
        count = len(self.weight)
        mine = tokens_BS // count == self.group.rank()
        rows = self.weight.new_zeros(*tokens_BS.shape, self.weight.shape[1])
        rows = rows.index_put(torch.where(mine), self.weight[tokens_BS[mine] % count])
        return self.reduce(rows)


@answers.right
class IsAnEmbedding(nn.Embedding):
    def __init__(self, embedding, group, reduce=None):
        count, left = divmod(embedding.num_embeddings, group.size())
        if left:
            raise ValueError(f"a vocabulary of {embedding.num_embeddings}: pad it")
        super().__init__(count, embedding.embedding_dim, dtype=embedding.weight.dtype)
        self.first, self.add = (
            group.rank() * count,
            reduce or answers.reference("f_and_g")(group)[1],
        )
        self.weight.data.copy_(embedding.weight[self.first : self.first + count])

    def forward(self, tokens_BS):
        local = (tokens_BS - self.first).clamp(-1, self.num_embeddings)
        inside = (local != -1) & (local != self.num_embeddings)
        rows = super().forward(torch.where(inside, local, 0))
        return self.add(torch.where(inside[..., None], rows, torch.zeros_like(rows)))
