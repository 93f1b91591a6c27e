"""Answers to `predict_kept`."""

import torch

from parlab.costs.tensor_parallel import block_in_numbers
from parlab_staff.answers import Answers

answers = Answers("predict_kept")

BETWEEN = "between = 4 * batch"
END = "end = 2 * between + 4 * batch * sequence * vocabulary"
BLOCK = '"block": 16 * between'
SCORES = '"scores": 4 * batch * heads * sequence**2'
MODEL = '"model": layers * 16 * between + end'
CHECKPOINTED = '"checkpointed": layers * between + end'

answers.edit("elements", "numbers", (BETWEEN, "between = batch"))
answers.edit("elements", "scores_in_numbers", (SCORES, SCORES.replace("4 * ", "")))
answers.edit("paper_bytes", "block_of_the_paper", (BLOCK, '"block": 34 * between / 4'))
answers.edit("paper_bytes", "scores_of_the_paper", (SCORES, SCORES.replace("4 * ", "5 * ")))
answers.edit("scores_too", "scores_and_softmax", (SCORES, SCORES.replace("4 * ", "8 * ")))
answers.edit("logits_forgotten", "no_logits", (END, "end = 2 * between"))
answers.edit("recomputed_block", "at_the_peak", (CHECKPOINTED, CHECKPOINTED + " + 16 * between"))
answers.edit(None, "one_layer", (MODEL, MODEL.replace("layers * ", "")))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.wrong("formula_called")
def from_the_costs(batch, sequence, hidden, heads, layers, vocabulary):
    block = block_in_numbers(batch, sequence, hidden, 1, 4)["serial"]
    end = 4 * batch * sequence * (2 * hidden + vocabulary)
    return {
        "block": block,
        "scores": 4 * batch * heads * sequence**2,
        "model": layers * block + end,
        "checkpointed": layers * block / 16 + end,
    }


@answers.right
def with_small_things(batch, sequence, hidden, heads, layers, vocabulary):
    """Means and deviations of the norms, and the logarithms of attention's sums."""
    tokens = batch * sequence
    found = answers.reference()(batch, sequence, hidden, heads, layers, vocabulary)
    small = tokens * (2 * 2 * 4 / 10)
    return {**found, "block": found["block"] + small}


@answers.right
def rounded_with_more(*sizes):
    return {name: round(n) for name, n in answers.reference()(*sizes).items()} | {"tokens": 0}


@answers.right
def lists(batch, sequence, hidden, heads, layers, vocabulary):
    """The same counts, as sums of lists of sizes."""
    t = batch * sequence
    norm_inputs, linear_inputs = [t * hidden] * 2, [t * hidden] * 3 + [t * 4 * hidden]
    one_block = sum(norm_inputs + linear_inputs + [t * hidden] * 3 + [t * 4 * hidden])
    rest = sum([t * hidden, t * hidden, t * vocabulary])
    numbers = dict(
        block=one_block,
        scores=heads * t * sequence,
        model=layers * one_block + rest,
        checkpointed=layers * t * hidden + rest,
    )
    return {what: float(4 * n) for what, n in numbers.items()}


@answers.right
def meta_tensors(
    batch: int, sequence: int, hidden: int, heads: int, layers: int, vocabulary: int
) -> dict[str, float]:
    """Asks tensors on the meta device for their bytes."""

    def bytes_of(*shape: int) -> int:
        return torch.empty(shape, dtype=torch.float32, device="meta").nbytes

    block = bytes_of(16, batch, sequence, hidden)
    end = bytes_of(2, batch, sequence, hidden) + bytes_of(batch, sequence, vocabulary)
    inputs = bytes_of(layers, batch, sequence, hidden)
    scores = bytes_of(batch, heads, sequence, sequence)
    return {
        "checkpointed": inputs + end,
        "model": layers * block + end,
        "scores": scores,
        "block": block,
    }
