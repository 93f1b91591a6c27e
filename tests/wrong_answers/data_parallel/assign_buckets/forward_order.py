"""backward finishes the last layers first

In the model's order.
"""

from torch import nn


def assign_buckets(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        bytes_more = parameter.numel() * parameter.element_size()
        if not buckets or size + bytes_more > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += bytes_more
    return buckets
