"""is in the buckets twice

Both names of the shared weight.
"""

from torch import nn


def assign_buckets(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(
        [p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    ):
        bytes_more = parameter.numel() * parameter.element_size()
        if not buckets or size + bytes_more > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += bytes_more
    return buckets
