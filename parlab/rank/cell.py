"""Finds the ranks that run the current `%%px` cell. The kernel sends their list with the cell."""

import sys


def ranks_of_cell() -> list[int] | None:
    """Return the ranks that run this cell, or None outside a cell, as in a script."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    return kernel.get_parent("shell").get("metadata", {}).get("label") if kernel else None
