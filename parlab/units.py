"""Formats numbers with units for people, such as `2.6 GB` or `104 ms`."""


def sized(size: float) -> str:
    """Format a number of bytes in the largest unit that fits, with three digits."""
    return _in_units(size, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}, "bytes")


def timed(seconds: float) -> str:
    """Format seconds in the largest unit that fits, with three digits."""
    return _in_units(seconds * 1e9, {"s": 1e9, "ms": 1e6, "µs": 1e3}, "ns")


def counted(number: float) -> str:
    """Format a count with three digits and a word, such as `1.3 billion`."""
    return _in_units(number, {"trillion": 1e12, "billion": 1e9, "million": 1e6}, "").strip()


def _in_units(value: float, units: dict[str, float], smallest: str) -> str:
    for unit, factor in units.items():
        # Use the next unit if three digits would round up to it: 1 MB, not 1e+03 kB.
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} {smallest}" if value < 999.5 else f"{value:,.0f} {smallest}"
