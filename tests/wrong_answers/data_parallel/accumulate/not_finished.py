"""finish() was never called

Nobody waits for the gradients.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn


def accumulate(
    parallel: nn.Module, micro_batches: list[tuple[torch.Tensor, torch.Tensor]], total: int
) -> float:
    weighted_loss = 0.0
    for i, (inputs, targets) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        with nullcontext() if last else parallel.no_sync():
            loss = F.cross_entropy(parallel(inputs), targets) * (len(inputs) / total)
            loss.backward()
        weighted_loss += loss.item()
    return weighted_loss
