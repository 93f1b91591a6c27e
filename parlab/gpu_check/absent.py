"""What is not here: modules that say so when they are used, so that who imports them goes on."""

import sys
from types import ModuleType
from typing import Any


class NotHere(Exception):
    """A cell asked for what this check leaves out; the message says what."""


def refusing_module(name: str, why: str, **members: Any) -> ModuleType:
    """Put a module of this name in place; using anything but `members` raises NotHere."""
    module = ModuleType(name)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):  # Python's own questions
            raise AttributeError(attribute)
        raise NotHere(f"{name}.{attribute} {why}")

    module.__dict__.update(members, __path__=[], __getattr__=missing)
    sys.modules[name] = module
    return module
