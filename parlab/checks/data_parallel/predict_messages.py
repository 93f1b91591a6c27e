"""Exercise `predict_messages`."""

import torch
from mpi4py import MPI

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import require_numbers
from parlab.checks.base.trial import Trial
from parlab.models import GPT

MISTAKES = Mistakes(
    tied_twice=(
        "{name}: the output layer is the embedding. It is one tensor with two names, so it is sent "
        "once"
    ),
    fewer_bytes="bytes_flat: one buffer saves messages, not bytes. Each gradient is still sent",
    elements="{name}: this is the number of elements. A float32 has 4 bytes",
    all_ranks="{name}: this is the total over all ranks. How much does one rank hand in?",
    half_of_the_ring=(
        "bytes_ring: this is the reduce-scatter only. The all-gather sends the same amount again"
    ),
)


@check_of(MISTAKES)
def predict_messages(check: Check) -> str:
    """Compare with the ledger's counts. For other numbers of ranks, use the ring's formula."""
    with check.trial() as trial:
        measured = measure(trial)
        for ranks in (trial.size, 2, 7):
            compare(trial, ranks, measured)
    shown = ", ".join(f"{name} {value:,.0f}" for name, value in measured.items())
    return f"as measured on {check.world_size} ranks: {shown}"


def compare(trial: Trial, ranks: int, measured: dict[str, float]) -> None:
    """Require the right numbers for this many ranks. Only `bytes_ring` depends on `ranks`."""
    right, what = dict(measured), "what was measured"
    if ranks != trial.size:
        what = "the right number"
        right["bytes_ring"] = 2 * (ranks - 1) / ranks * right["bytes_flat"]
    trial.situation = f"for {ranks} ranks"
    predicted = trial.run(ranks)
    twice, wrong = 1 + GPT().unembed.weight.nbytes / right["bytes"], []
    for name in ("bytes", "bytes_flat", "bytes_ring"):
        wrong += [
            (name, right[name] * twice, MISTAKES.tied_twice(name=name)),
            (name, right[name] / 4, MISTAKES.elements(name=name)),
        ]
    wrong += [
        ("messages", right["messages"] + 1, MISTAKES.tied_twice(name="messages")),
        ("bytes", right["bytes"] * ranks, MISTAKES.all_ranks(name="bytes")),
        ("bytes_flat", right["bytes"] / right["messages"], MISTAKES.fewer_bytes()),
        ("bytes_ring", right["bytes_ring"] / 2, MISTAKES.half_of_the_ring()),
    ]
    require_numbers(trial, predicted, right, wrong, what)


def measure(trial: Trial) -> dict[str, float]:
    """Count what a rank passes to all-reduces, one by one and flat, and sends on a ring."""
    gradients = [torch.zeros_like(p) for p in GPT().parameters()]
    flat, found = torch.cat([g.flatten() for g in gradients]), {}
    for suffix, tensors in (("", gradients), ("_flat", [flat])):
        trial.ledger.clear()
        for tensor in tensors:
            trial.comm.Allreduce(MPI.IN_PLACE, tensor)
        found[f"messages{suffix}"] = trial.ledger.count()
        found[f"bytes{suffix}"] = trial.ledger.bytes_sent()
    found["bytes_ring"] = trial.ledger.ring_bytes()
    return found
