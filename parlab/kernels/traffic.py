"""Counts the bytes that PyTorch's operations read from memory and write to it.

with traffic() as moved:
    y = x.exp() / 3
moved.bytes, moved.operations      # 4 * x.nbytes, 2
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class traffic(TorchDispatchMode):
    """Counts operations and the bytes of the tensors that they read and write.

    An operation that changes a tensor reads and writes it. An operation that gets a tensor twice
    reads it once. Views do not count, because they move nothing, and neither do tensors without
    dimensions, such as Adam's step count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.operations = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        result = operation(*arguments, **(named or {}))
        given = {id(t): t for t in tree_iter((arguments, named)) if _large(t)}
        reads = list(given.values())
        writes = [t for t in tree_iter(result) if _large(t)]
        if (reads or writes) and not operation.is_view:
            self.operations += 1
            self.bytes += sum(t.nbytes for t in reads + writes)
        return result


def _large(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
