"""Answers to `attention`."""

import torch
import triton
import triton.language as tl

from parlab_staff.answers import Answers

answers = Answers("attention")
reference = answers.reference()

Q = "q = tl.load(q_pointer + q_places, mask=query < length, other=0.0)"
K = "k = tl.load(k_pointer + k_places, mask=key[:, None] < length, other=0.0)"
V = "v = tl.load(v_pointer + k_places, mask=key[:, None] < length, other=0.0)"
END = "end = tl.minimum(begin + TILE, length)"
SCORES = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale'
ALLOWED = "allowed = key[None, :] < length"
CAUSAL = "allowed = allowed & (key[None, :] <= query)"
LARGER = "larger = tl.maximum(highest, tl.max(scores, axis=1))"
RESULT = "result = result * factor[:, None]"
DOT = 'result = tl.dot(powers.to(v.dtype), v, result, input_precision="ieee")'
STORE = "tl.store(out_pointer + q_places, result / total[:, None], mask=query < length)"
OUT = "out = torch.empty_like(q)"
GRID = "(triton.cdiv(length, 32), heads)"
RETURN = "return out"
BY_TORCH = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)"

answers.edit("outside", "no_mask", (K, "k = tl.load(k_pointer + k_places)"))
answers.edit("undefined_numbers", "no_other", (V, V.replace(", other=0.0", "")))
answers.edit("no_max", "powers_at_once", (LARGER, "larger = tl.maximum(highest, 0.0)"))
answers.edit("padding_counted", "padding_is_zero", (ALLOWED, "allowed = key[None, :] >= 0"))
answers.edit("future_seen", "mask_forgotten", (CAUSAL, "pass"), (END, "pass"))
answers.edit(None, "future_of_a_tile_seen", (CAUSAL, "pass"))
answers.edit("result_kept", "result_not_corrected", (RETURN, RETURN), (RESULT, "result = result"))
answers.edit("beyond_diagonal", "no_early_end", (END, "pass"))
answers.edit("scores_stored", "stored_in_each_step", (DOT, f"{DOT}\n        {STORE}"))
answers.edit("not_by_kernel", "torch_in_the_end", (RETURN, f"return {BY_TORCH}"))
answers.edit("argument_changed", "in_place", (OUT, "out = q"))
answers.edit("wrong_dtype", "float32_always", (OUT, "out = torch.empty(q.shape)"))
answers.edit(None, "one_head", (GRID, "(triton.cdiv(length, 32), 1)"))
answers.edit(None, "loaded_again", (SCORES, f"{Q}\n        {SCORES}"), says="avoid needless loads")


answers.right_edit(
    "weights_in_float32", (DOT, DOT.replace("powers.to(v.dtype), v", "powers, v.to(tl.float32)"))
)
answers.right_edit(
    "scaled_query",
    (Q, f"{Q}.to(tl.float32) * scale"),
    (SCORES, 'scores = tl.dot(q, tl.trans(k.to(tl.float32)), input_precision="ieee")'),
)
answers.right_edit(
    "added_later", (DOT, 'result += tl.dot(powers.to(v.dtype), v, input_precision="ieee")')
)
answers.right_edit(
    "longest_first",
    (
        "begin = tl.program_id(0) * TILE",
        "begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE",
    ),
)
answers.right_edit(
    "tiles_of_16_keys",
    ("for first in range(0, end, TILE):", "for first in range(0, end, 16):"),
    ("key = first + tl.arange(0, TILE)", "key = first + tl.arange(0, 16)"),
)


@triton.jit
def powers_of_two(q, k, v, out, length, scale, D: tl.constexpr, CAUSAL: tl.constexpr):
    """Heads and tiles on one axis, exponentials to the base 2, and pointers that move."""
    tiles = tl.cdiv(length, 32)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    inner, width = tl.arange(0, 32), tl.arange(0, D)
    rows = tile * 32 + inner
    inside = rows[:, None] < length
    q += (head * length + rows[:, None]) * D + width[None, :]
    k += (head * length + inner[:, None]) * D + width[None, :]
    v += (head * length + inner[:, None]) * D + width[None, :]
    queries = tl.load(q, mask=inside, other=0.0)
    highest, total = tl.full((32,), -1e30, tl.float32), tl.zeros((32,), tl.float32)
    result = tl.zeros((32, D), tl.float32)
    for step in range(0, tile + 1 if CAUSAL else tiles):
        keys = step * 32 + inner
        there = keys[:, None] < length
        numbers = tl.load(k, mask=there, other=0.0)
        scores = tl.dot(queries, tl.trans(numbers), input_precision="ieee") * (
            scale * 1.4426950408889634
        )
        used = keys[None, :] < length
        if CAUSAL:
            used &= keys[None, :] <= rows[:, None]
        scores = tl.where(used, scores, -float("inf"))
        larger = tl.maximum(highest, tl.max(scores, 1))
        powers = tl.exp2(scores - larger[:, None])
        total = total * tl.exp2(highest - larger) + tl.sum(powers, 1)
        numbers = tl.load(v, mask=there, other=0.0)
        result = result * tl.exp2(highest - larger)[:, None]
        result += tl.dot(powers.to(numbers.dtype), numbers, input_precision="ieee")
        highest = larger
        k += 32 * D
        v += 32 * D
    place = (head * length + rows[:, None]) * D + width[None, :]
    tl.store(out + place, result / total[:, None], mask=inside)


@answers.right
def one_axis(q, k, v, causal=False):
    heads, length, width = q.shape
    out = torch.zeros_like(q)
    grid = (heads * triton.cdiv(length, 32),)
    powers_of_two[grid](q, k, v, out, length, width**-0.5, D=width, CAUSAL=causal)
    return out


answers.edit(
    None,
    "one_result_for_all_calls",
    (OUT, f"{OUT}\n    out = attention.__dict__.setdefault((q.shape, q.dtype), out)"),
    says="changes the result of the first one",
)
