"""Answers to `quantize_blocks`."""

import torch
import torch.nn.functional as F

from parlab.formats.dynamic import dynamic_map
from parlab_staff.answers import Answers

answers = Answers("quantize_blocks")

ABSMAX = "absmax = blocks.abs().amax(1)"
SCALED = "scaled = blocks / absmax.where(absmax > 0, 1)[:, None]"
CODES = "codes = torch.bucketize(scaled, middles, out_int32=True)"
RETURN = "return codes.flatten()[: len(values)].to(torch.uint8), absmax"
ALL = "codes = (scaled.unsqueeze(-1) - levels).abs().argmin(-1)"

for mistake, name, *edits in (
    ("one_absmax", "one_absmax", (ABSMAX, "absmax = values.abs().max().expand(len(blocks))")),
    ("signed_maximum", "signed_maximum", (ABSMAX, "absmax = blocks.amax(1)")),
    (None, "level_above", (CODES, "codes = torch.bucketize(scaled, levels)")),
    (None, "zeros_divided", (SCALED, "scaled = blocks / absmax[:, None]")),
    ("all_distances", "all_distances", (CODES, ALL)),
    (None, "not_scaled", (SCALED, "scaled = blocks")),
    ("wrong_shape", "padding_kept", (RETURN, RETURN.replace("[: len(values)]", ""))),
    (None, "only_the_codes", (RETURN, RETURN.replace(", absmax", ""))),
    (
        "argument_changed",
        "divided_in_place",
        (RETURN, "values /= values.abs().max()\n    " + RETURN),
    ),
):
    answers.edit(mistake, name, *edits)

answers.right_edit(
    "times_the_inverse", (SCALED, "scaled = blocks * (1 / absmax.where(absmax > 0, 1))[:, None]")
)
answers.right_edit("upper_of_two", (CODES, CODES.replace("middles,", "middles, right=True,")))


@answers.right
def block_by_block(values, levels, block_size):
    codes, absmax = [], []
    for block in values.split(block_size):
        largest = block.abs().max()
        scaled = block / largest if largest > 0 else block
        codes.append((scaled[:, None] - levels).abs().argmin(1).to(torch.uint8))
        absmax.append(largest)
    return torch.cat(codes), torch.stack(absmax)


@answers.right
def two_neighbors(values, levels, block_size):
    padded = F.pad(values, (0, -len(values) % block_size)).view(-1, block_size)
    absmax = padded.abs().max(dim=1).values
    scaled = (padded / absmax[:, None]).nan_to_num(0.0).flatten()[: len(values)]
    above = torch.searchsorted(levels, scaled).clamp(1, 255)
    nearer = (scaled - levels[above - 1]) < (levels[above] - scaled)
    return (above - nearer.long()).byte(), absmax


@answers.right
def in_float64(values, levels, block_size):
    state = values.double()
    blocks = -(-len(state) // block_size)
    absmax = torch.stack([state[i * block_size :][:block_size].abs().max() for i in range(blocks)])
    each = absmax.repeat_interleave(block_size)[: len(state)]
    scaled = torch.where(each > 0, state / each, 0.0)
    wide = levels.double()
    codes = torch.bucketize(scaled, (wide[1:] + wide[:-1]) / 2)
    return codes.to(torch.uint8), absmax.float()


@answers.wrong(None)
def always_signed(values, levels, block_size):
    return answers.reference()(values, dynamic_map(True), block_size)
