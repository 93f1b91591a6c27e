"""Records the sizes of the gradients and updates of a small GPT, for chapter 06.

    python -m benchmarks.recordings.exponents

It writes `book/measurements/exponents.json`: the count of numbers in each octave, from 2^e up to
2^(e+1). After some training in float32, it counts the gradients of all layers' outputs in one
backward pass, and the updates of one step. It measures no times.
"""

import json
import sys
from collections import Counter
from datetime import date

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import machine
from parlab.data import text
from parlab.models import GPT, GPTConfig
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.exponents"
FILE = ROOT / "book" / "measurements" / "exponents.json"
CONFIG = GPTConfig(hidden_size=128, layers=4)
STEPS, BATCH, RATE = 400, 16, 1e-3
LATER = (1, 10, 100)  # factors by which a schedule reduces the learning rate
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def octaves(x: Tensor) -> Counter[int]:
    """Return, by e, how many nonzero numbers x have 2^e ≤ |x| < 2^(e+1)."""
    exponents = torch.frexp(x[x != 0].double()).exponent - 1
    values, counts = exponents.unique(return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def watch(model: nn.Module, counted: Counter[int]) -> list[torch.utils.hooks.RemovableHandle]:
    """Count the gradients of outputs of all innermost layers, until the handles are removed."""

    def note(layer: nn.Module, inputs: object, output: Tensor) -> None:
        output.register_hook(lambda gradient: counted.update(octaves(gradient)))

    leaves = [module for module in model.modules() if not list(module.children())]
    return [module.register_forward_hook(note) for module in leaves]


def vanished(
    before: list[Tensor], after: list[Tensor], dtype: torch.dtype, divisor: int = 1
) -> float:
    """Return the share of updates that do not change their weight if both are in `dtype`."""
    gone = total = 0
    for old, new in zip(before, after, strict=True):
        moved = (new != old) & (old != 0)
        weight, update = old[moved].to(dtype), ((new - old)[moved] / divisor).to(dtype)
        gone += int((weight + update == weight).sum())
        total += int(moved.sum())
    return round(gone / total, 5)


def main() -> int:
    """Train, count, and write the file."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    length = CONFIG.sequence_length + 1
    windows = torch.from_numpy(text("train", (STEPS + 1) * BATCH * length)).long()
    batches = windows.view(STEPS + 1, BATCH, length)
    gradients: Counter[int] = Counter()
    handles = []
    for step, batch in enumerate(batches):
        if step == STEPS:
            handles = watch(model, gradients)
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
    for handle in handles:
        handle.remove()
    after = [p.detach() for p in model.parameters()]
    ratios: Counter[int] = Counter()
    for old, new in zip(before, after, strict=True):
        ratios.update(octaves(((new - old) / old)[old != 0]))
    record = {
        "what": f"a GPT of {CONFIG.layers} blocks of {CONFIG.hidden_size} on {BATCH} samples of "
        f"{CONFIG.sequence_length} bytes, after {STEPS} steps of Adam at {RATE:g} in float32: "
        "numbers in each octave of the gradients of all layers' outputs, and of updates over "
        "weights; the share of updates that leave a 16-bit weight as it is, at this rate and at "
        "so many times less",
        "machine": machine.description(),
        "date": date.today().isoformat(),
        "command": COMMAND,
        "loss": round(loss.item(), 3),
        "rate": RATE,
        "gradients": dict(sorted(gradients.items())),
        "updates": dict(sorted(ratios.items())),
        "vanished": {
            name: {divisor: vanished(before, after, dtype, divisor) for divisor in LATER}
            for name, dtype in HALVES.items()
        },
    }
    write_atomically(FILE, json.dumps(record, indent=2) + "\n")
    print(f"{FILE.name}: loss {record['loss']}, vanished {record['vanished']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
