"""Returns memory to the operating system that was freed but that the C library still holds."""

import ctypes


def give_back() -> None:
    """Return the freed memory that glibc holds, for all threads. Other C libraries may keep it."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
