"""Names of the parameters in buckets, and the requirement that the buckets are filled."""

from torch import nn

from parlab.checks.base.mistakes import Finding, observed
from parlab.checks.base.models import trainable

Names = list[list[str]]


def trainable_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of each trainable parameter, in the model's order."""
    return {name: p.nbytes for name, p in trainable(model).items()}


def bucket_names(buckets: list[list[nn.Parameter]], model: nn.Module) -> Names:
    """Return the names of the parameters in each bucket, or "?" if `model` does not have one."""
    known = {id(p): name for name, p in model.named_parameters()}
    return [[known.get(id(p), "?") for p in bucket] for bucket in buckets]


def filled(buckets: Names, sizes: dict[str, int], limit: int) -> Finding | None:
    """Require all parameters in reverse order, and in each bucket as many as fit.

    Args:
        sizes: bytes of each parameter, in the model's order.
        limit: bytes that a bucket may hold; a larger parameter must be alone.
    """
    order = [name for bucket in buckets for name in bucket]
    if order != [*reversed(sizes)]:
        return observed(f"the buckets hold, in order, {order}, expected {[*reversed(sizes)]}")
    if [] in buckets:
        return observed(f"bucket {buckets.index([])} is empty")
    totals = [sum(sizes[name] for name in bucket) for bucket in buckets]
    for i, (bucket, total) in enumerate(zip(buckets, totals, strict=True)):
        if total > limit and len(bucket) > 1:
            return observed(
                f"bucket {i} holds {len(bucket)} parameters of {total} bytes in all, which exceeds "
                f"the limit of {limit}"
            )
        after = buckets[i + 1][0] if i + 1 < len(buckets) else None
        if after and total + sizes[after] <= limit:
            return observed(
                f"bucket {i} holds {total} bytes, and {after}, of {sizes[after]}, is in the next "
                f"bucket, although both fit into {limit}"
            )
    return None
