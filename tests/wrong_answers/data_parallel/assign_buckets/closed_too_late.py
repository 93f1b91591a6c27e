"""open a new bucket before the parameter that would go over the limit

A bucket is closed when it is over the limit already.
"""

from torch import nn


def assign_buckets(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        bytes_more = parameter.numel() * parameter.element_size()
        if not buckets or size > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += bytes_more
    return buckets
