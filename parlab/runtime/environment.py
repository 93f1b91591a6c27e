"""Variables of the environment that other programs need and that labs must not inherit."""

import os
from collections.abc import Mapping

# What each variable would do to a lab.
HARMFUL = {
    "MPLBACKEND": "matplotlib would not show its pictures in notebooks",
    "PYTHONASYNCIODEBUG": "cells would print messages of Python's event loop",
    "PYTHONDEVMODE": "JupyterLab and the ranks would print their warnings",
    "PYTHONINSPECT": "programs would wait for input at their end",
    "PYTHONOPTIMIZE": "Python would skip `assert`, and ipyparallel would not start",
    "PYTHONTRACEMALLOC": "ranks would need a minute to start",
    "PYTHONWARNINGS": "a warning of a library could end the ranks",
}


def harmful(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return which of these variables are set, and what each would do to a lab."""
    return {name: effect for name, effect in HARMFUL.items() if variables.get(name)}


def without_harmful(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables without those that labs must not inherit."""
    return {name: value for name, value in variables.items() if name not in HARMFUL}
