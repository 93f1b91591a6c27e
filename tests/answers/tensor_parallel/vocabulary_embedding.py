"""Answers to `vocabulary_embedding`."""

import torch
import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("vocabulary_embedding")
Reference = answers.reference()
f_and_g = answers.reference("f_and_g")

OWN = "embedding.weight.detach().chunk(group.size())[group.rank()]"
CLONE = "self.weight = nn.Parameter(own.clone())"
ROWS = "F.embedding(local_BS * inside_BS, self.weight) * inside_BS.unsqueeze(-1)"
LOCAL = "local_BS = tokens_BS - self.group.rank() * count"
RETURN = "return self.reduce(rows_BSH)"

answers.edit("not_masked", "mask_forgotten", (ROWS, ROWS.partition(" * inside_BS.uns")[0]))
answers.edit(
    "not_masked", "clamped", (ROWS, "F.embedding(local_BS.clamp(0, count - 1), self.weight)")
)
answers.edit("not_summed", "without_g", (RETURN, "return rows_BSH"))
answers.edit(None, "strided", (OWN, "embedding.weight.detach()[group.rank() :: group.size()]"))
answers.edit(
    "kept_whole",
    "alone_the_table_itself",
    ("own.clone()", "own.clone() if group.size() > 1 else own"),
)
answers.edit("kept_whole", "keeps_it", (CLONE, CLONE + "\n        self.old = [embedding]"))
answers.edit(
    None,
    "not_a_parameter",
    (CLONE, "self.weight = own.clone()"),
    says="the parameters are [], expected ['weight']",
)
answers.edit("wrong_shape", "whole", ("own.clone()", "embedding.weight.detach().clone()"))
answers.edit(
    None,
    "mask_of_the_first_call",
    (
        "        rows_BSH =",
        '        self.inside_BS = getattr(self, "inside_BS", inside_BS)\n'
        "        inside_BS = inside_BS & self.inside_BS\n"
        "        rows_BSH =",
    ),
    says="second batch",
)
answers.edit(
    "sends_more",
    "asks_the_others",
    (
        RETURN,
        'if self.reduce.__name__ == "<lambda>":\n'
        "            dist.all_reduce(torch.zeros(1), group=self.group)\n"
        f"        {RETURN}",
    ),
)
answers.edit(
    "not_refused", "not_refused", ("if embedding.num_embeddings % group.size():", "if False:")
)
answers.edit(
    "argument_changed",
    "tokens_moved",
    (LOCAL, "tokens_BS -= self.group.rank() * count\n        local_BS = tokens_BS"),
)
answers.edit(
    None,
    "reduce_ignored",
    (RETURN, "return f_and_g(self.group)[1](rows_BSH)"),
    says="`reduce` was passed",
)
answers.edit(
    None,
    "reduces_sequence_first",
    (RETURN, "return self.reduce(rows_BSH.transpose(0, 1)).transpose(0, 1)"),
    says="does not return its result",
)
answers.edit(
    None,
    "table_of_rank_0",
    (
        CLONE,
        CLONE + "\n        dist.broadcast(embedding.weight.detach(), group_src=0, group=group)",
    ),
    says="something else is sent as well",
)
answers.edit(
    None,
    "f_around_the_weight",
    (ROWS, ROWS.replace("self.weight", "f_and_g(self.group)[0](self.weight)")),
)


@answers.wrong(None)
class MaskedForwardOnly(Reference):
    """Zeros for the output, but the row that was looked up learns."""

    def forward(self, tokens_BS):
        count = len(self.weight)
        local = tokens_BS - self.group.rank() * count
        inside = (local >= 0) & (local < count)
        rows = F.embedding(local.clamp(0, count - 1), self.weight)
        return self.reduce(rows - (rows * ~inside.unsqueeze(-1)).detach())


@answers.right
class OneHot(Reference):
    def forward(self, tokens_BS):
        first = self.group.rank() * len(self.weight)
        own = torch.arange(first, first + len(self.weight))
        return self.reduce((tokens_BS.unsqueeze(-1) == own).to(self.weight.dtype) @ self.weight)


@answers.right
class ZeroRow(Reference):
    """Adds a row of zeros behind the last, for all tokens of others."""

    def forward(self, tokens_BS):
        count = len(self.weight)
        local = tokens_BS - self.group.rank() * count
        local = torch.where((local >= 0) & (local < count), local, count)
        return self.reduce(F.pad(self.weight, (0, 0, 0, 1))[local])


@answers.right
class MaskedFill(Reference):
    def forward(self, tokens_BS):
        count = len(self.weight)
        owner = torch.div(tokens_BS, count, rounding_mode="floor")
        rows = self.weight[tokens_BS % count]
        return self.reduce(rows.masked_fill((owner != self.group.rank()).unsqueeze(-1), 0.0))


@answers.right
class OnlyOwn(Reference):
    """Looks up only what this rank has."""

    def forward(self, tokens_BS):
        count = len(self.weight)
        own = tokens_BS // count == self.group.rank()
        rows = self.weight.new_zeros(*tokens_BS.shape, self.weight.shape[1])
        return self.reduce(rows.index_put(torch.where(own), self.weight[tokens_BS[own] % count]))


@answers.right
class IsAnEmbedding(nn.Embedding):
    def __init__(self, embedding, group, reduce=None):
        count, left = divmod(embedding.num_embeddings, group.size())
        if left:
            raise ValueError(f"a vocabulary of {embedding.num_embeddings}: pad it")
        super().__init__(count, embedding.embedding_dim, dtype=embedding.weight.dtype)
        self.first, self.add = group.rank() * count, reduce or f_and_g(group)[1]
        self.weight.data.copy_(embedding.weight[self.first : self.first + count])

    def forward(self, tokens_BS):
        local = (tokens_BS - self.first).clamp(-1, self.num_embeddings)
        inside = (local != -1) & (local != self.num_embeddings)
        rows = super().forward(torch.where(inside, local, 0))
        return self.add(torch.where(inside[..., None], rows, torch.zeros_like(rows)))
