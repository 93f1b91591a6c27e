"""Answers to `dispatch`."""

import torch
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("dispatch")

KEPT = "    tokens, choices = (slots_Tk >= 0).nonzero(as_tuple=True)\n"
ALL = KEPT.replace("slots_Tk >= 0", "slots_Tk >= -1")
ZEROS = "x_TH.new_zeros(n_experts, capacity, x_TH.shape[1])"
WRITE = "slots_ECH[experts_Tk[tokens, choices], slots_Tk[tokens, choices]] = x_TH[tokens]"

answers.edit("dropped_kept", "minus_one_is_a_slot", (KEPT, ALL))
answers.edit("returns_none", "no_return", ("return slots_ECH", "slots_ECH"))
answers.edit(None, "without_graph", (WRITE, WRITE.replace("= x_TH[", "= x_TH.detach()[")))
answers.edit(None, "not_zero", (ZEROS, ZEROS.replace("new_zeros", "new_ones")))
answers.edit(
    "wrong_dtype", "in_float64", (ZEROS, f"{ZEROS}.double()"), (WRITE, f"{WRITE}.double()")
)
answers.edit(
    "wrong_shape", "one_slot_more", ("n_experts, capacity, x_TH", "n_experts, capacity + 1, x_TH")
)
answers.edit("argument_changed", "slots_changed", (KEPT, KEPT + "    slots_Tk.clamp_(min=0)\n"))


@answers.wrong("packed")
def own_queue(x_TH, experts_Tk, slots_Tk, n_experts, capacity):
    """The slots are counted again, from those choices that are not dropped."""
    slots_ECH = x_TH.new_zeros(n_experts, capacity, x_TH.shape[1])
    for expert in range(n_experts):
        kept = ((experts_Tk == expert) & (slots_Tk >= 0)).T.nonzero()[:, 1]
        slots_ECH[expert, : len(kept)] = x_TH[kept]
    return slots_ECH


@answers.right
def one_hot(x_TH, experts_Tk, slots_Tk, n_experts, capacity):
    """GShard's way: a mask (T, E, C), and a product."""
    mask = x_TH.new_zeros(len(x_TH), n_experts, capacity)
    for choice in range(experts_Tk.shape[1]):
        is_expert = F.one_hot(experts_Tk[:, choice], n_experts).to(x_TH.dtype)
        is_slot = F.one_hot(slots_Tk[:, choice] + 1, capacity + 1)[:, 1:].to(x_TH.dtype)
        mask = mask + is_expert.unsqueeze(2) * is_slot.unsqueeze(1)
    return torch.einsum("tec,th->ech", mask, x_TH)


@answers.right
def in_loops(x_TH, experts_Tk, slots_Tk, n_experts, capacity):
    slots_ECH = x_TH.new_zeros((n_experts, capacity, x_TH.size(1)))
    for token, (experts, slots) in enumerate(zip(experts_Tk, slots_Tk, strict=True)):
        for expert, slot in zip(experts.tolist(), slots.tolist(), strict=True):
            if slot != -1:
                slots_ECH[expert, slot] = x_TH[token]
    return slots_ECH


@answers.right
def extra_slot(x_TH, experts_Tk, slots_Tk, n_experts, capacity):
    """Dropped choices go to a slot that is cut off in the end."""
    slots_ECH = x_TH.new_zeros(n_experts, capacity + 1, x_TH.shape[1])
    slots = torch.where(slots_Tk < 0, capacity, slots_Tk)
    slots_ECH[experts_Tk, slots] = x_TH.unsqueeze(1).expand(-1, experts_Tk.shape[1], -1)
    return slots_ECH[:, :capacity]


@answers.right
def gathered(x_TH, experts_Tk, slots_Tk, n_experts, capacity):
    """Each slot looks up its token. Empty slots look up a row of zeros."""
    token_of = torch.full((n_experts, capacity), len(x_TH))
    tokens, choices = torch.where(slots_Tk >= 0)
    token_of[experts_Tk[tokens, choices], slots_Tk[tokens, choices]] = tokens
    return torch.cat([x_TH, x_TH.new_zeros(1, x_TH.shape[1])])[token_of]


@answers.right
def scattered(x_TH, experts_Tk, slots_Tk, n_experts, capacity):
    kept = slots_Tk >= 0
    places = (experts_Tk * capacity + slots_Tk)[kept]
    rows = x_TH[:, None].expand(*experts_Tk.shape, x_TH.shape[1])[kept]
    flat = torch.zeros(n_experts * capacity, x_TH.shape[1], dtype=x_TH.dtype)
    return flat.index_copy(0, places, rows).reshape(n_experts, capacity, x_TH.shape[1])
