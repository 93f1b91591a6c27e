"""Variables of the environment that other programs need and that labs must not inherit."""

import os

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


def harmful() -> dict[str, str]:
    """Return which of these variables are set, and what each would do to a lab."""
    return {name: effect for name, effect in HARMFUL.items() if os.environ.get(name)}


def without_harmful() -> dict[str, str]:
    """Return the environment without the variables that labs must not inherit."""
    return {name: value for name, value in os.environ.items() if name not in HARMFUL}
