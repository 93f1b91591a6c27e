"""Exercise `predict_messages`."""

from collections.abc import Iterator

import torch
from mpi4py import MPI

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.predict_ring import ring
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.checks.trial import Trial
from parlab.models import GPT

Numbers = dict[str, float]

MISTAKES = Mistakes(
    tied_twice=(
        "{name}: the output layer is the embedding. It is one tensor with two names, and is sent "
        "once"
    ),
    fewer_bytes=(
        "bytes_flat: one buffer saves messages, not bytes. Every gradient still travels, once"
    ),
    elements="{name}: that is the number of elements. A float32 has 4 bytes",
    all_ranks="{name}: that is what all ranks hand in together. Asked for is what one hands in",
    half_of_the_ring=(
        "bytes_ring: that is the reduce-scatter alone; the all-gather sends as much once more"
    ),
    whole_buffer_each_round=(
        "bytes_ring: in each of its 2(N−1) rounds a rank sends one chunk, an N-th of the buffer"
    ),
)


@check_of(MISTAKES)
def predict_messages(check: Check) -> str:
    """Compare with what the ledger has of the three ways."""
    with check.trial() as trial:
        predicted = trial.run(trial.size)
        measured = measure(trial)
        trial.require(
            lambda: form(predicted, measured),
            lambda: misconception(predicted, measured, wrong_numbers(measured, trial.size)),
            lambda: fewer_bytes(predicted),
            lambda: first_wrong(predicted, measured),
        )
    shown = ", ".join(f"{name} {value:,.0f}" for name, value in measured.items())
    return f"as measured on {check.world_size} ranks: {shown}"


def measure(trial: Trial) -> Numbers:
    """Messages and bytes of rank 0, for the gradients tensor by tensor, flat, and on a ring."""
    gradients = [torch.zeros_like(p) for p in GPT().parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])

    def sent() -> tuple[int, int]:
        calls = trial.ledger.calls
        trial.ledger.clear()
        return len(calls), sum(call.bytes_sent for call in calls)

    trial.ledger.clear()
    for gradient in gradients:
        trial.comm.Allreduce(MPI.IN_PLACE, gradient)
    messages, bytes_sent = sent()
    trial.comm.Allreduce(MPI.IN_PLACE, flat)
    messages_flat, bytes_flat = sent()
    ring(flat.numpy(), trial.comm)
    _, bytes_ring = sent()
    return trial.gather(
        {
            "messages": messages,
            "bytes": bytes_sent,
            "messages_flat": messages_flat,
            "bytes_flat": bytes_flat,
            "bytes_ring": bytes_ring,
        }
    )[0]


def wrong_numbers(right: Numbers, size: int) -> Iterator[Wrong]:
    twice = 1 + GPT().unembed.weight.nbytes / right["bytes"]
    yield "messages", right["messages"] + 1, MISTAKES.tied_twice(name="messages")
    for name in ("bytes", "bytes_flat", "bytes_ring"):
        yield name, right[name] * twice, MISTAKES.tied_twice(name=name)
        yield name, right[name] / 4, MISTAKES.elements(name=name)
        if name == "bytes_ring":
            yield name, right[name] / 2, MISTAKES.half_of_the_ring()
            yield name, right[name] * size, MISTAKES.whole_buffer_each_round()
        yield name, right[name] * size, MISTAKES.all_ranks(name=name)


def fewer_bytes(predicted: Numbers) -> Finding | None:
    return MISTAKES.fewer_bytes() if predicted["bytes_flat"] < predicted["bytes"] else None
