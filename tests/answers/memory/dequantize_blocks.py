"""Answers to `dequantize_blocks`."""

import torch
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("dequantize_blocks")

LEVELS = "levels[codes.long()]"
EACH = "absmax.repeat_interleave(block_size)[: len(codes)]"
RETURN = f"return {LEVELS} * {EACH}"

for mistake, name, *edits in (
    ("not_scaled", "levels_only", (RETURN, f"return {LEVELS}")),
    ("interleaved", "repeated", (EACH, "absmax.repeat(block_size)[: len(codes)]")),
    (None, "codes_times_absmax", (LEVELS, "codes.float()")),
    (None, "map_assumed", (LEVELS, "dynamic_map(True)[codes.long()]")),
    ("raises", "a_mask", (LEVELS, "levels[codes]")),
    ("raises", "whole_blocks_only", (EACH, "absmax.repeat_interleave(block_size)")),
    ("wrong_dtype", "float64", (RETURN, f"return ({LEVELS} * {EACH}).double()")),
    ("argument_changed", "absmax_changed", (RETURN, f"absmax *= 1.5; {RETURN} / 1.5")),
    (None, "more_is_kept", (RETURN, f"return ({LEVELS} * {EACH}).repeat(4)[: len(codes)]")),
    ("returns_none", "no_return", (RETURN, RETURN.removeprefix("return "))),
):
    answers.edit(mistake, name, *edits)

answers.edit(
    None,
    "one_buffer_for_all",
    (
        RETURN,
        f"numbers = {LEVELS} * {EACH}\n"
        "    buffer = vars(dequantize_blocks).setdefault(len(codes), torch.empty_like(numbers))\n"
        "    return buffer.copy_(numbers)",
    ),
    says="this call changes the result of an earlier one",
)

answers.right_edit("index_select", (LEVELS, "levels.index_select(0, codes.int())"))
answers.right_edit("from_the_end", (LEVELS, "levels[codes.to(torch.int8).long()]"))


@answers.right
def in_rows(codes, absmax, levels, block_size):
    rows = F.pad(codes, (0, -len(codes) % block_size)).view(-1, block_size)
    return (levels[rows.int()] * absmax[:, None]).flatten()[: len(codes)].clone()


@answers.right
def block_by_block(codes, absmax, levels, block_size):
    blocks = zip(codes.split(block_size), absmax, strict=True)
    return torch.cat([levels[block.long()] * scale for block, scale in blocks])


@answers.right
def by_index(codes, absmax, levels, block_size):
    block = torch.arange(len(codes)) // block_size
    return F.embedding(codes.long(), levels[:, None])[:, 0].mul_(absmax[block])
