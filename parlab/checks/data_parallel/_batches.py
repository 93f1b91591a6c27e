"""A requirement on how ranks divide global batches, for `sharded_sampler` and `train`."""

from collections import Counter
from collections.abc import Sequence

from parlab.checks.base.mistakes import Finding, observed

Shares = Sequence[Sequence[int]]  # the samples of one step, by rank


def divided(steps: Sequence[Shares], sizes: Sequence[int]) -> Finding | None:
    """Require even shares of each global batch, of the given `sizes`, and each sample once."""
    for step, (shares, size) in enumerate(zip(steps, sizes, strict=True)):
        counts = [len(share) for share in shares]
        if sum(counts) != size or max(counts) - min(counts) > 1:
            return observed(
                f"in step {step}, the ranks have {counts} samples, expected {size} in all, in "
                "shares that differ by at most 1"
            )
    counted = Counter(sample for shares in steps for share in shares for sample in share)
    for sample in (*range(sum(sizes)), *counted):
        if counted[sample] != (right := int(0 <= sample < sum(sizes))):
            return observed(f"sample {sample} is used {counted[sample]} times, expected {right}")
    return None
