"""Memory that the C library holds is returned to the system."""

import psutil

from parlab.runtime.heap import give_back


def test_freed_memory_is_given_back() -> None:
    process = psutil.Process()
    blocks = [bytes(10_000) for _ in range(5_000)]  # 50 MB, in blocks that glibc does not map alone
    last = blocks.pop()
    blocks.clear()
    held = process.memory_full_info().uss
    give_back()
    assert process.memory_full_info().uss < held - 30e6
    assert len(last) == 10_000  # while it existed, glibc could not return the blocks before it
