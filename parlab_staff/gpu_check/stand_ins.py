"""Stand-ins for missing modules: importing them works, and using them raises an error."""

import sys
from types import ModuleType
from typing import Any


class Unavailable(Exception):
    """A cell used something that this check leaves out; the message names it."""


def refusing_module(name: str, why: str, **members: Any) -> ModuleType:
    """Install a module with this name; using anything but `members` raises Unavailable."""
    module = ModuleType(name)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):  # Python itself looks for these
            raise AttributeError(attribute)
        raise Unavailable(f"{name}.{attribute} {why}")

    module.__dict__.update(members, __path__=[], __getattr__=missing)
    sys.modules[name] = module
    return module
