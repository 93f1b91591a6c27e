"""Values as bytes, with plain tensors as their plain bytes.

A tensor's own pickle is a file of several parts. A check sends hundreds of small tensors, and then
spends longer on those files than on what it checks.
"""

import copyreg
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any


def packed(value: Any) -> bytes:
    """The value's pickle, for `pickle.loads`."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    if torch := sys.modules.get("torch"):
        pickler.dispatch_table = copyreg.dispatch_table | {torch.Tensor: _reduced}
    pickler.dump(value)
    return file.getvalue()


def _reduced(tensor: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How to make the tensor again; its own way where it is more than a row of numbers."""
    import torch

    plain = (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() > 0
    )
    if not plain:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    data = bytearray(tensor.view(-1).view(torch.uint8).numpy())
    return _made, (data, tensor.dtype, tuple(tensor.shape))


def _made(data: bytearray, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(data, dtype=dtype).view(shape)
