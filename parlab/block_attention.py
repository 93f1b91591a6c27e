"""Computes attention of some queries over one block of keys, for methods for long sequences.

The softmax of a query is over the keys of all blocks. Each block therefore also returns the
logarithm of its sum of exponentials (lse), with which results of several blocks can be merged. The
backward pass computes the probabilities again, from the lse of all blocks together.

    q (…, S, d); k and v (…, K, d); visible (S, K), True where a query sees a key, or None for all
"""

from torch import Tensor, inf


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output (…, S, d) and the lse (…, S) of attention over one block of keys.

    A query that sees no key of the block has an output of 0 and an lse of −inf. Queries that see no
    key, and keys that no query sees, are left out of the computation.
    """
    out, lse = v.new_zeros(q.shape), q.new_full(q.shape[:-1], -inf)
    rows, columns, visible = _needed(visible)
    scores = _scores(q[..., rows, :], k[..., columns, :], visible)
    lse[..., rows] = scores.logsumexp(-1)
    probabilities = (scores - lse[..., rows, None]).exp()
    out[..., rows, :] = probabilities @ v[..., columns, :]
    return out, lse


def attend_backward(
    gradient: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what one block of keys adds to the gradient of q, and the gradients of k and v.

    `gradient` (…, S, d) is the gradient of the output over all blocks, `out` (…, S, d) is that
    output, and `lse` (…, S) is the lse over all blocks.
    """
    of_q, of_k, of_v = q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    rows, columns, visible = _needed(visible)
    gradient, out, lse, q = (
        gradient[..., rows, :],
        out[..., rows, :],
        lse[..., rows],
        q[..., rows, :],
    )
    k, v = k[..., columns, :], v[..., columns, :]
    probabilities = (_scores(q, k, visible) - lse[..., None]).exp()
    of_v[..., columns, :] = probabilities.mT @ gradient
    of_scores = gradient @ v.mT - (gradient * out).sum(-1, keepdim=True)
    of_scores = of_scores * probabilities * q.shape[-1] ** -0.5
    of_q[..., rows, :] = of_scores @ k
    of_k[..., columns, :] = of_scores.mT @ q
    return of_q, of_k, of_v


def _needed(visible: Tensor | None) -> tuple[Tensor | slice, Tensor | slice, Tensor | None]:
    """Return the queries that see a key, the keys that a query sees, and `visible` for these."""
    if visible is None:
        return slice(None), slice(None), None
    rows, columns = visible.any(1), visible.any(0)
    return rows, columns, visible[rows][:, columns]


def _scores(q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores if visible is None else scores.masked_fill(~visible, -inf)
