"""Numbers with units as people read them: `2.6 GB`, `104 ms`."""


def sized(size: float) -> str:
    """Bytes in the unit that reads best, with three digits."""
    return _in_units(size, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}, "bytes")


def timed(seconds: float) -> str:
    """Seconds in the unit that reads best, with three digits."""
    return _in_units(seconds * 1e9, {"s": 1e9, "ms": 1e6, "µs": 1e3}, "ns")


def counted(number: float) -> str:
    """A count in words of thousands, with three digits: `1.3 billion`."""
    return _in_units(number, {"trillion": 1e12, "billion": 1e9, "million": 1e6}, "").strip()


def _in_units(value: float, units: dict[str, float], smallest: str) -> str:
    for unit, factor in units.items():
        # What three digits would round up to the next unit belongs there: 1 MB, not 1e+03 kB.
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} {smallest}" if value < 999.5 else f"{value:,.0f} {smallest}"
