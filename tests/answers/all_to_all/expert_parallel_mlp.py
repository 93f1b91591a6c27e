"""Answers to `expert_parallel_mlp`."""

import torch
import torch.distributed as dist
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("expert_parallel_mlp")
Reference = answers.reference()
route = answers.reference("route")
dispatch = answers.reference("dispatch")
combine = answers.reference("combine")
exchange = answers.reference("exchange")

OWN = "experts[group.rank() * own : (group.rank() + 1) * own]"
REFUSE = "        if len(experts) % group.size():\n"
ROUTE = "route(scores_TE, self.k, self.capacity)"
LAST = "self.last = scores_TE.softmax(-1), experts_Tk"
ARRIVED = "arrived = exchange(slots_ECH.unflatten(0, (ranks, -1)), self.group)"
ROWS = "own = arrived.transpose(0, 1).flatten(1, 2)"
BACK = "y_ECH = exchange(results, self.group).flatten(0, 1)"
EACH = "expert(rows)"
RAW = """\
def exchanged(x, group):
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(output, x.detach().contiguous(), group=group)
    return output


class ExpertParallelMLP("""
CLASS = "class ExpertParallelMLP("

answers.edit(None, "keeps_all", (f"nn.ModuleList({OWN})", "nn.ModuleList(experts)"))
answers.edit(None, "every_nth", (OWN, "experts[group.rank() :: group.size()]"))
answers.edit(
    "kept_whole",
    "keeps_a_list",
    (f"nn.ModuleList({OWN})", f"nn.ModuleList({OWN})\n        self.every = list(experts)"),
)
answers.edit(
    None,
    "slots_for_all_ranks",
    (ROUTE, "route(scores_TE, self.k, max(self.capacity // ranks, 1))"),
)
answers.edit(
    "mixed_up",
    "not_transposed",
    (ROWS, "own = arrived.reshape(len(self.experts), -1, x_TH.shape[1])"),
)
answers.edit(None, "detached", (LAST, LAST.replace("scores_TE.", "scores_TE.detach().")))
answers.edit(
    None,
    "back_without_graph",
    (BACK, BACK.replace("exchange(", "exchanged(")),
    (CLASS, RAW),
)
answers.edit(
    None,
    "rank_by_rank",
    (EACH, "torch.cat([expert(part) for part in rows.chunk(ranks)])"),
)
answers.edit("not_refused", "rounded_down", (REFUSE, "        if False:\n"))
answers.edit(
    "sends_more",
    "sizes_first",
    (ARRIVED, "dist.all_reduce(torch.ones(1), group=self.group)\n        " + ARRIVED),
)
answers.edit(
    "wrong_shape", "last_is_first", (LAST, f"if not hasattr(self, 'last'):\n            {LAST}")
)
answers.edit("wrong_type", "a_list_of_experts", (f"nn.ModuleList({OWN})", f"list({OWN})"))
answers.edit(
    None, "only_probabilities", (LAST, LAST.replace(", experts_Tk", "")), says="not a pair"
)


answers.right_edit(
    "copies",
    (OWN, f"copy.deepcopy(list({OWN}))"),
    (CLASS, "import copy\n\n\n" + CLASS),
)


@answers.right
class ByIndex(nn.Module):
    def __init__(self, router, experts, k, capacity, group):
        super().__init__()
        n, rank = group.size(), group.rank()
        if len(experts) % n != 0:
            raise ValueError(f"E = {len(experts)} is no multiple of {n}")
        own = len(experts) // n
        self.experts = nn.ModuleList()
        for number, expert in enumerate(experts):
            if number // own == rank:
                self.experts.append(expert)
        self.router, self.k, self.capacity, self.group = router, k, capacity, group
        self.last = None

    def forward(self, x):
        n, own, capacity = self.group.size(), len(self.experts), self.capacity
        scores = self.router(x)
        probabilities = torch.softmax(scores, dim=-1)
        chosen, gates, slots = route(scores, self.k, capacity)
        self.last = (probabilities, chosen)
        sent = dispatch(x, chosen, slots, n * own, capacity).view(n, own * capacity, -1)
        arrived = exchange(sent, self.group).view(n, own, capacity, -1)
        results = []
        for number, expert in enumerate(self.experts):
            rows = arrived[:, number].reshape(n * capacity, -1)
            results.append(expert(rows).view(n, capacity, -1))
        back = exchange(torch.stack(results, dim=1), self.group)
        return combine(back.reshape(n * own, capacity, -1), chosen, slots, gates)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dist.all_to_all_single(output, x.contiguous(), group=group)
        return output

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.forward(ctx, gradient, ctx.group), None


@answers.right
class OwnAllToAll(Reference):
    """The exchange is written here, over (E, C, H)."""

    def forward(self, x_TH):
        scores_TE = self.router(x_TH)
        n_experts, own = scores_TE.shape[1], len(self.experts)
        experts_Tk, gates_Tk, slots_Tk = route(scores_TE, self.k, self.capacity)
        self.last = [scores_TE.softmax(1), experts_Tk]
        slots_ECH = dispatch(x_TH, experts_Tk, slots_Tk, n_experts, self.capacity)
        arrived = AllToAll.apply(slots_ECH, self.group).unflatten(0, (-1, own))
        results = [
            e(rows.flatten(0, 1)) for e, rows in zip(self.experts, arrived.unbind(1), strict=True)
        ]
        results = torch.stack([r.unflatten(0, (-1, self.capacity)) for r in results], 1)
        y_ECH = AllToAll.apply(results.flatten(0, 1), self.group)
        return combine(y_ECH, experts_Tk, slots_Tk, gates_Tk)


@answers.right
class Softmax(Reference):
    """The probabilities are computed twice, and the rows are three-dimensional."""

    def forward(self, x_TH):
        scores_TE = self.router(x_TH)
        self.last = torch.exp(scores_TE.log_softmax(1)), scores_TE.topk(self.k).indices
        experts_Tk, gates_Tk, slots_Tk = route(scores_TE, self.k, self.capacity)
        n = self.group.size()
        slots_ECH = dispatch(x_TH, experts_Tk, slots_Tk, scores_TE.size(1), self.capacity)
        arrived = exchange(slots_ECH.view(n, -1, *slots_ECH.shape[1:]), self.group)
        parts = [
            expert(rows.contiguous())
            for expert, rows in zip(self.experts, arrived.unbind(1), strict=True)
        ]
        y_ECH = exchange(torch.stack(parts, dim=1), self.group)
        return combine(y_ECH.flatten(0, 1), experts_Tk, slots_Tk, gates_Tk)


answers.edit(
    "wrong_shape",
    "last_only_in_training",
    (LAST, "if self.training:\n            " + LAST),
    says="after `eval()`",
)
