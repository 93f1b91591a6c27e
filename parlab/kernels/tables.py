"""Tables of integers that assign parts of tensors to the programs of a kernel.

chunks = chunk_table((1, 1_000, 50_000), 16_384, device)   # a row for each program
tensors = to_device(torch.tensor(addresses), device)
"""

import functools

import torch


def chunk_table(sizes: tuple[int, ...], chunk: int, device: torch.device) -> torch.Tensor:
    """Return a table, int64, of the chunks of `chunk` elements in tensors of these sizes.

    Each row has the number of a tensor and the first element of a chunk of it. The table depends
    only on the arguments, so a table on a GPU is kept for later calls and must not be changed. In
    the interpreter, a wrong kernel may store into any tensor, so each call returns a new table.
    """
    return (_new_table if device.type == "cpu" else _kept_table)(sizes, chunk, device)


def _new_table(sizes: tuple[int, ...], chunk: int, device: torch.device) -> torch.Tensor:
    rows = [[i, first] for i, size in enumerate(sizes) for first in range(0, size, chunk)]
    return torch.tensor(rows).to(device)


_kept_table = functools.lru_cache(_new_table)


def to_device(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a table from the host's memory, without waiting for the work in a GPU's queue."""
    if device.type == "cpu":
        return table
    return table.pin_memory().to(device, non_blocking=True)
