"""Tensors in a file, and what remains of them."""

import os
from pathlib import Path

import pytest
import torch

from parlab.activation_stores import FileStore


def drawn(size: int) -> torch.Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8)


def test_numbers_come_back_as_often_as_they_are_read(tmp_path: Path) -> None:
    store, numbers = FileStore(tmp_path), [drawn(size) for size in (5, 300_000, 5, 0)]
    tickets = [store.write(part) for part in numbers]
    for _ in range(2):
        for ticket, part in zip(reversed(tickets), reversed(numbers), strict=True):
            assert torch.equal(ticket.read(), part)


def test_a_dropped_ticket_frees_its_place(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    kept, dropped = store.write(drawn(100)), store.write(drawn(60))
    assert store.bytes == 160
    del dropped
    assert store.bytes == 100
    new = drawn(60)
    again = store.write(new)
    assert store.bytes == store._end == 160
    assert torch.equal(again.read(), new)
    assert len(kept.read()) == 100


def test_a_ticket_outlives_its_store(tmp_path: Path) -> None:
    numbers = drawn(40)
    ticket = FileStore(tmp_path).write(numbers)
    assert torch.equal(ticket.read(), numbers)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux lists a process's files")
def test_no_file_has_a_name_or_stays_open(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link)]

    store = FileStore(tmp_path)
    ticket = store.write(drawn(40))
    assert not list(tmp_path.iterdir())
    assert any(str(tmp_path) in name for name in open_files())
    del store, ticket
    assert not any(str(tmp_path) in name for name in open_files())


@pytest.mark.parametrize("numbers", [torch.zeros(4), drawn(6).view(2, 3), drawn(6)[::2]])
def test_only_flat_bytes_are_written(numbers: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="flat uint8"):
        FileStore(tmp_path).write(numbers)
