"""Memory that the C library holds is returned to the system."""

import subprocess
import sys

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


LARGE_BLOCKS = """
from concurrent.futures import ThreadPoolExecutor
import psutil
from parlab.runtime.heap import always_give_back_large_blocks, give_back
always_give_back_large_blocks()
def use() -> int:
    return sum(len(bytes(20_000_000)) for _ in range(3))
before = psutil.Process().memory_full_info().uss
with ThreadPoolExecutor(1) as thread:
    for _ in range(3):
        thread.submit(use).result()
    give_back()
    print(psutil.Process().memory_full_info().uss - before)
"""


def test_large_blocks_are_given_back_at_once() -> None:
    """A process of its own, because the option of glibc is the process's."""
    ran = subprocess.run(
        [sys.executable, "-c", LARGE_BLOCKS], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 5e6
