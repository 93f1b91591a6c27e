"""Weight with len(inputs) / total

1/k for each of k micro-batches, and the ranks by their shares.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn


def accumulate(
    parallel: nn.Module, micro_batches: list[tuple[torch.Tensor, torch.Tensor]], total: int
) -> float:
    weighted_loss = 0.0
    share = sum(len(inputs) for inputs, _ in micro_batches) / total
    for i, (inputs, targets) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        with nullcontext() if last else parallel.no_sync():
            loss = F.cross_entropy(parallel(inputs), targets) * (share / len(micro_batches))
            loss.backward()
        weighted_loss += loss.item()
    parallel.finish()
    return weighted_loss
