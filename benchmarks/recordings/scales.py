"""Records how a small GPT learns with gradients in fp16 and different loss scales, for chapter 06.

    python -m benchmarks.recordings.scales

It writes `book/measurements/scales.json`: the loss after some training, for each scale. Only the
gradients of each layer's outputs and of the weights are rounded to float16. Everything else is in
float32, so that only the scale makes a difference. It measures no times.
"""

import json
import statistics
import sys
from datetime import date

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import machine
from parlab.data import text
from parlab.models import GPT
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.scales"
FILE = ROOT / "book" / "measurements" / "scales.json"
SCALES = range(-14, 23, 2)  # powers of two
STEPS, LAST, BATCH, RATE = 200, 20, 16, 3e-3


def halved(gradient: Tensor) -> Tensor:
    return gradient.half().float()


def round_gradients(model: nn.Module) -> None:
    """Round the gradient of every layer's output to float16."""

    def note(layer: nn.Module, inputs: object, output: Tensor) -> None:
        output.register_hook(halved)

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(note)


def train(scale: float | None) -> tuple[float, int]:
    """Return the mean loss of the last steps, and the number of skipped steps.

    A scale of None means float32.
    """
    torch.manual_seed(0)
    model = GPT()
    if scale is not None:
        round_gradients(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    length = model.config.sequence_length + 1
    windows = torch.from_numpy(text("train", STEPS * BATCH * length)).long()
    losses, skipped = [], 0
    for batch in windows.view(STEPS, BATCH, length):
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        (loss * (scale or 1.0)).backward()
        losses.append(loss.item())
        if scale is not None:
            for parameter in model.parameters():
                parameter.grad = halved(parameter.grad) / scale
        if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
            optimizer.step()
        else:
            skipped += 1
    return round(statistics.fmean(losses[-LAST:]), 4), skipped


def main() -> int:
    """Train once for each scale, and write the file."""
    torch.set_num_threads(1)
    record = {
        "what": f"a small GPT, {STEPS} steps of Adam at {RATE:g} with {BATCH} samples of 64 bytes: "
        f"mean loss of the last {LAST} steps, and steps skipped for an overflow, by loss scale (a "
        "power of two); gradients rounded to float16, all else in float32",
        "machine": machine.description(),
        "date": date.today().isoformat(),
        "command": COMMAND,
        "float32": train(None)[0],
        "scales": {power: train(2.0**power) for power in SCALES},
    }
    write_atomically(FILE, json.dumps(record, indent=2) + "\n")
    print(f"{FILE.name}: float32 {record['float32']}, {record['scales']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
