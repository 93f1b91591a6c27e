"""Records how an MLP learns with large batches, late gradients, and rare averages, for chapter 02.

    python -m benchmarks.recordings.batches

It writes `book/measurements/batches.json`: the test loss after three epochs on 8,192 MNIST images,
with SGD and momentum, always from the same start. It measures no times, and simulates the ranks in
one process.
"""

import copy
import json
import math
import sys
from collections import deque
from collections.abc import Iterator
from datetime import date

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from benchmarks import machine
from parlab import models
from parlab.data import mnist
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.batches"
FILE = ROOT / "book" / "measurements" / "batches.json"
SAMPLES, EPOCHS, BATCH, RATE, MOMENTUM, WARM_UP = 8192, 3, 32, 0.01, 0.9, 128
FACTORS = [1, 4, 16, 64]  # batch sizes, in units of BATCH
RATES = [RATE * 2**k for k in range(7)]
DELAYS, LATE_RATES = [0, 1, 3, 7, 15, 31], [RATE / 2**k for k in range(5)]
RANKS, STEPS_BETWEEN = 4, [1, 4, 16, 64, 256, 768]


def mnist_tensors(split: str, limit: int) -> tuple[Tensor, Tensor]:
    """Return images and labels."""
    images, labels = map(torch.from_numpy, mnist(split, limit=limit))
    return images, labels


IMAGES, LABELS = mnist_tensors("train", SAMPLES)
TEST_IMAGES, TEST_LABELS = mnist_tensors("test", 2000)


def new_model() -> nn.Module:
    """Return the model with which every run starts."""
    torch.manual_seed(0)
    return models.mlp(64)


def batches(size: int) -> Iterator[Tensor]:
    """Yield the indices of each step's batch."""
    order = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        yield from torch.randperm(SAMPLES, generator=order).split(size)


def compute_gradient(model: nn.Module, batch: Tensor) -> None:
    """Replace the gradients of `model` with the gradients of the mean loss over `batch`."""
    model.zero_grad()
    cross_entropy(model(IMAGES[batch]), LABELS[batch]).backward()


def test_loss(model: nn.Module) -> float | None:
    """Return the mean loss on the test images; None if it is NaN."""
    with torch.no_grad():
        loss = cross_entropy(model(TEST_IMAGES), TEST_LABELS).item()
    return None if math.isnan(loss) else round(loss, 3)


def large_batch(factor: int, rate: float) -> float | None:
    """Train with a batch `factor` times as large, and the same number of samples in the warm-up."""
    model, warm_up = new_model(), max(1, WARM_UP // factor)
    optimizer = SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    for step, batch in enumerate(batches(BATCH * factor), start=1):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, step / warm_up)
        compute_gradient(model, batch)
        optimizer.step()
    return test_loss(model)


def late_gradients(delay: int, rate: float) -> float | None:
    """Train with gradients that were computed from the weights of `delay` steps earlier."""
    model, waiting = new_model(), deque()
    optimizer = SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    for batch in batches(BATCH):
        compute_gradient(model, batch)
        waiting.append([parameter.grad for parameter in model.parameters()])
        if len(waiting) > delay:
            for parameter, gradient in zip(model.parameters(), waiting.popleft(), strict=True):
                parameter.grad = gradient
            optimizer.step()
    return test_loss(model)


def average(replicas: list[nn.Module]) -> None:
    """Replace the weights of every replica with the mean over all replicas."""
    with torch.no_grad():
        for parameters in zip(*(model.parameters() for model in replicas), strict=True):
            mean = torch.stack(parameters).mean(0)
            for parameter in parameters:
                parameter.copy_(mean)


def local_sgd(steps_between: int) -> float | None:
    """Train a replica on each rank's shard, and average weights every `steps_between` steps."""
    replicas = [copy.deepcopy(new_model()) for _ in range(RANKS)]
    optimizers = [SGD(model.parameters(), lr=RATE, momentum=MOMENTUM) for model in replicas]
    for step, batch in enumerate(batches(BATCH), start=1):
        for rank, (model, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            compute_gradient(model, batch[rank::RANKS])
            optimizer.step()
        if step % steps_between == 0:
            average(replicas)
    average(replicas)
    return test_loss(replicas[0])


def main() -> int:
    """Train with every setting, and write the file."""
    torch.set_num_threads(1)
    record = {
        "what": f"an MLP with 64 hidden units on {SAMPLES} MNIST images, {EPOCHS} epochs of SGD "
        f"with momentum {MOMENTUM}: loss on 2000 test images; null: not a number. large_batches: "
        f"by batch size and learning rate, warm-up during {WARM_UP * BATCH} samples. "
        f"late_gradients: by delay in steps and learning rate, batch {BATCH}. local_sgd: by steps "
        f"between two averages of {RANKS} ranks' weights, {BATCH // RANKS} samples each, learning "
        f"rate {RATE}",
        "machine": machine.description(),
        "date": date.today().isoformat(),
        "command": COMMAND,
        "large_batches": {
            BATCH * k: {rate: large_batch(k, rate) for rate in RATES} for k in FACTORS
        },
        "late_gradients": {
            delay: {rate: late_gradients(delay, rate) for rate in LATE_RATES} for delay in DELAYS
        },
        "local_sgd": {steps: local_sgd(steps) for steps in STEPS_BETWEEN},
    }
    write_atomically(FILE, json.dumps(record, indent=2) + "\n")
    print(f"{FILE.name}: {record['large_batches']}, {record['late_gradients']}, ", end="")
    print(record["local_sgd"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
