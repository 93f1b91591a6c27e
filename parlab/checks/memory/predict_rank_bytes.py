"""Exercise `predict_rank_bytes`: bytes of meta tensors, and of collectives on a ring."""

from collections.abc import Iterator

import torch

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.costs.collectives import ring_bytes

BLOCK = 256

MISTAKES = Mistakes(
    absmax_left_out=(
        "states: this is too little for the absmax. Each block of m and of v has one, which is a "
        "float32"
    ),
    not_sharded="states: this is what all ranks hold together. A rank has one of N shards",
    one_state="states: this is one of Adam's states. It has two, m and v",
    float_states="states: this is 4 bytes for each number of a state. A code takes 1 byte",
    gradients_sharded=(
        "gradients: this shards them, too. In stage 1, a rank keeps all gradients until they are "
        "reduced"
    ),
    not_checkpointed=(
        "activations: this is what layers keep that are not checkpointed. A checkpointed layer "
        "keeps only its input"
    ),
    one_layer="activations: this is the input of one layer, but each layer keeps its own",
    sixteen_bits="activations: this counts 2 bytes for each number. Here, they are float32",
    reduced_twice=(
        "sent: this reduces the gradients twice. Recomputation repeats the forward pass, but "
        "nothing more is sent"
    ),
    reduced_only="sent: this is the reduce-scatter only. After the step, all shards are gathered",
    whole="sent: this sends all the data twice. On a ring, a rank keeps its own part: (N − 1)/N",
)


@check_of(MISTAKES, ranks=1)
def predict_rank_bytes(check: Check) -> str:
    """Compare for several models and numbers of ranks."""
    with check.trial() as trial:
        draw = trial.draw
        cases = {}
        # With 3 or 4 ranks, two mistakes have the same number.
        for ranks in (6, 5, draw.randrange(8, 64), 1):
            parameters = ranks * draw.randrange(10, 10**3) * BLOCK
            sizes = [draw.randrange(3, 40) for _ in range(4)]
            named = (f"{name} = {size}" for name, size in zip("lbsh", sizes, strict=True))
            cases[f"Ψ = {parameters:,}, N = {ranks}, {', '.join(named)}"] = (
                *(parameters, ranks),
                *sizes,
            )
        for _, arguments in trial.cases(cases):
            right = right_numbers(*arguments)
            predicted = trial.run(*arguments)
            require_numbers(trial, predicted, right, wrong_numbers(*arguments), "the right number")
    return "4Ψ + 4Ψ + 2.03Ψ/N held, 4bsh for each layer, and 8Ψ(N − 1)/N sent"


def right_numbers(
    parameters: int, ranks: int, layers: int, batch: int, sequence: int, hidden: int
) -> dict[str, float]:
    """Count the bytes of tensors without memory."""

    def count(*shape: int, dtype: torch.dtype = torch.float32) -> int:
        return memory.tensor_bytes([torch.empty(shape, dtype=dtype, device="meta")])

    shard = parameters // ranks
    size = count(parameters)
    return {
        "parameters": size,
        "gradients": size,
        "states": 2 * (count(shard, dtype=torch.uint8) + count(shard // BLOCK)),
        "activations": layers * count(batch, sequence, hidden),
        "sent": ring_bytes("reduce_scatter", size, ranks) + ring_bytes("all_gather", size, ranks),
    }


def wrong_numbers(
    parameters: int, ranks: int, layers: int, batch: int, sequence: int, hidden: int
) -> Iterator[Wrong]:
    """List what each mistake predicts."""
    right = right_numbers(parameters, ranks, layers, batch, sequence, hidden)
    shard, layer = parameters / ranks, 4 * batch * sequence * hidden
    each = {
        "states": (
            ("absmax_left_out", 2 * shard),
            ("not_sharded", 2 * parameters),
            ("not_sharded", right["states"] * ranks),
            ("one_state", shard),
            ("one_state", right["states"] / 2),
            ("float_states", 8 * shard),
        ),
        "gradients": (("gradients_sharded", 4 * shard),),
        "activations": (
            ("one_layer", layer),
            ("sixteen_bits", layers * layer / 2),
            ("not_checkpointed", 16 * layers * layer),
            ("not_checkpointed", 34 * layers * layer / 4),
        ),
        "sent": (
            ("reduced_only", right["sent"] / 2),
            ("reduced_twice", right["sent"] * 1.5),
            ("whole", 8 * parameters),
        ),
    }
    for name, values in each.items():
        for key, value in values:
            yield name, value, getattr(MISTAKES, key)()
