"""Returns memory to the operating system that was freed but that the C library still holds."""

import ctypes

LARGE = 2**20  # bytes
# Of mallopt, in glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def give_back() -> None:
    """Return the freed memory that glibc holds, for all threads. Other C libraries may keep it."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def always_give_back_large_blocks() -> None:
    """Make glibc return each block of `LARGE` bytes or more as soon as it is freed.

    By default, glibc raises its thresholds when it frees a large block: up to 64 MiB then stay at
    the end of each thread's heap, and `give_back` does not reach them.
    """
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(M_MMAP_THRESHOLD, LARGE)
        set_option(M_TRIM_THRESHOLD, LARGE)
