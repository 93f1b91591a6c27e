"""Answers to `route`."""

from collections import Counter

import torch
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("route")

GATES = "gates_Tk, experts_Tk = scores_TE.softmax(-1).topk(k)"
QUEUE = "queue = experts_Tk.T.flatten()"
SO_FAR = "so_far = F.one_hot(queue, n_experts).cumsum(0)"
PLACES = "places = so_far.gather(1, queue.unsqueeze(1)) - 1"
SLOTS = "slots_Tk = places.view(experts_Tk.T.shape).T"
RETURN = "return experts_Tk, gates_Tk, slots_Tk.where(slots_Tk < capacity, -1)"
K_TEST = "if not 1 <= k <= n_experts:"
CAPACITY_TEST = "if capacity < 1:"
EVERY_COLUMN = (
    "so_far = torch.cat([F.one_hot(one, n_experts).cumsum(0) for one in experts_Tk.unbind(1)])"
)

for mistake, name, *edits in (
    ("softmax_over_tokens", "softmax_over_tokens", (GATES, GATES.replace("-1", "0"))),
    (None, "topk_of_scores", (GATES, GATES.replace(".softmax(-1)", ""))),
    (
        "renormalized",
        "divided_by_their_sum",
        (RETURN, RETURN.replace("gates_Tk,", "gates_Tk / gates_Tk.sum(-1, keepdim=True),")),
    ),
    ("no_gradient", "detached", (RETURN, RETURN.replace("gates_Tk,", "gates_Tk.detach(),"))),
    (
        "token_by_token",
        "token_by_token",
        (QUEUE, "queue = experts_Tk.flatten()"),
        (SLOTS, "slots_Tk = places.view(experts_Tk.shape)"),
    ),
    ("queue_for_each_choice", "queue_for_each_choice", (SO_FAR, EVERY_COLUMN)),
    (None, "from_one", (PLACES, PLACES.replace(" - 1", ""))),
    (
        None,
        "numerator_only",
        (
            GATES,
            "whole = scores_TE.logsumexp(-1, True).detach()\n"
            "    gates_Tk, experts_Tk = (scores_TE - whole).exp().topk(k)",
        ),
    ),
    (
        None,
        "overflow",
        (
            GATES,
            GATES.replace(
                "scores_TE.softmax(-1)", "(scores_TE.exp() / scores_TE.exp().sum(-1, True))"
            ),
        ),
    ),
    ("not_refused", "k_not_refused", (K_TEST, "if k > n_experts:")),
    ("not_refused", "capacity_not_refused", (CAPACITY_TEST, "if capacity < 0:")),
    ("wrong_dtype", "slots_of_32_bits", (RETURN, RETURN + ".int()")),
    (
        "argument_changed",
        "softmax_in_place",
        (
            GATES,
            "scores_TE.data.copy_(scores_TE.data.softmax(-1))\n"
            "    gates_Tk, experts_Tk = scores_TE.topk(k)",
        ),
    ),
    (
        "lab_communicator",
        "capacity_over_all_ranks",
        (
            PLACES,
            "from mpi4py import MPI\n    own = F.one_hot(queue, n_experts).sum(0)\n"
            "    before = MPI.COMM_WORLD.exscan(own.numpy()) if MPI.COMM_WORLD.rank else 0\n"
            "    places = (so_far + before).gather(1, queue.unsqueeze(1)) - 1",
        ),
    ),
):
    answers.edit(mistake, name, *edits)


def refused(scores_TE, k, capacity):
    if k < 1 or k > scores_TE.shape[-1]:
        raise ValueError(f"bad k: {k}")
    if capacity <= 0:
        raise ValueError(f"capacity must be positive, got {capacity}")


@answers.right
def loops(scores_TE, k, capacity):
    refused(scores_TE, k, capacity)
    gates, experts = torch.topk(F.softmax(scores_TE, dim=1), k)
    slots, lengths = torch.full_like(experts, -1), Counter()
    for choice in range(k):
        for token, expert in enumerate(experts[:, choice].tolist()):
            if lengths[expert] < capacity:
                slots[token, choice] = lengths[expert]
                lengths[expert] += 1
    return experts, gates, slots


@answers.right
def sorted_by_expert(scores_TE, k, capacity):
    """A stable sort puts the queues one after the other."""
    refused(scores_TE, k, capacity)
    probabilities = scores_TE.log_softmax(-1).exp()
    experts = probabilities.argsort(-1, descending=True)[:, :k]
    choices = experts.t().reshape(-1)
    order = choices.argsort(stable=True)
    lengths = choices.bincount(minlength=scores_TE.shape[1])
    starts = lengths.cumsum(0) - lengths
    places = torch.empty_like(choices)
    places[order] = torch.arange(len(choices)) - starts[choices[order]]
    slots = places.reshape(k, -1).t().contiguous()
    slots[slots >= capacity] = -1
    return experts, probabilities.gather(1, experts), slots


answers.right_edit(
    "topk_by_function", (GATES, "gates_Tk, experts_Tk = torch.topk(F.softmax(scores_TE, 1), k)")
)
