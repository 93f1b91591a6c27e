"""Answers to `combine`."""

import torch
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("combine")

GATED = "gates_Tk[tokens, choices, None] * rows"

answers.edit(None, "gates_forgotten", (GATED, "rows"))
answers.edit("dropped_added", "minus_one_is_a_slot", ("slots_Tk >= 0", "slots_Tk >= -1"))
answers.edit("returns_none", "no_return", ("return zeros", "zeros"))
answers.edit(None, "gates_without_graph", ("gates_Tk[tokens", "gates_Tk.detach()[tokens"))
answers.edit("one_choice", "written_once", (
    f"return zeros.index_add(0, tokens, {GATED})",
    f"zeros[tokens] += {GATED}\n    return zeros",
))  # fmt: skip


@answers.wrong("order_of_arrival")
def as_they_arrive(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    """The filled slots in their order, as if it were the order of the tokens."""
    filled = torch.zeros(y_ECH.shape[:2], dtype=torch.bool)
    filled[experts_Tk[slots_Tk >= 0], slots_Tk[slots_Tk >= 0]] = True
    rows = y_ECH[filled]
    missing = rows.new_zeros(gates_Tk.numel() - len(rows), rows.shape[1])
    rows = torch.cat([rows, missing]).view(*gates_Tk.shape, rows.shape[1])
    return (rows * gates_Tk.unsqueeze(-1)).sum(1)


@answers.wrong("dropped_added")
def clamped(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    return (y_ECH[experts_Tk, slots_Tk.clamp(min=0)] * gates_Tk.unsqueeze(-1)).sum(1)


@answers.right
def masked(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    rows = y_ECH[experts_Tk, slots_Tk.clamp(min=0)]
    return (rows * (gates_Tk * (slots_Tk >= 0)).unsqueeze(-1)).sum(1)


@answers.right
def one_hot(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    """GShard's way: gates in a mask (T, E, C), and a product."""
    n_experts, capacity, _ = y_ECH.shape
    is_expert = F.one_hot(experts_Tk, n_experts).to(y_ECH.dtype)
    is_slot = F.one_hot(slots_Tk + 1, capacity + 1)[..., 1:].to(y_ECH.dtype)
    return torch.einsum("tk,tke,tkc,ech->th", gates_Tk, is_expert, is_slot, y_ECH)


@answers.right
def in_loops(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    rows = []
    for experts, slots, gates in zip(experts_Tk, slots_Tk, gates_Tk, strict=True):
        row = y_ECH.new_zeros(y_ECH.shape[2])
        for expert, slot, gate in zip(experts.tolist(), slots.tolist(), gates, strict=True):
            if slot >= 0:
                row = row + gate * y_ECH[expert, slot]
        rows.append(row)
    return torch.stack(rows) if rows else y_ECH.new_zeros(0, y_ECH.shape[2])


@answers.right
def choice_by_choice(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    total = y_ECH.new_zeros(len(experts_Tk), y_ECH.shape[-1])
    for experts, slots, gates in zip(experts_Tk.T, slots_Tk.T, gates_Tk.T, strict=True):
        kept = slots >= 0
        rows = torch.zeros_like(total)
        rows[kept] = y_ECH[experts[kept], slots[kept]]
        total = total + gates[:, None] * rows
    return total


@answers.right
def with_a_row_of_zeros(y_ECH, experts_Tk, slots_Tk, gates_Tk):
    """Dropped choices look up a row of zeros at the end."""
    flat = torch.cat([y_ECH.flatten(0, 1), y_ECH.new_zeros(1, y_ECH.shape[2])])
    places = torch.where(slots_Tk < 0, len(flat) - 1, experts_Tk * y_ECH.shape[1] + slots_Tk)
    return torch.bmm(gates_Tk.unsqueeze(1), flat[places]).squeeze(1)
