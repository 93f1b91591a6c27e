"""Stand-ins for missing modules: importing them works, and using them raises an error."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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


def refuse_package(name: str, why: str) -> None:
    """Make a package and all its modules importable; calling anything in it raises Unavailable.

    A cell may import a name that only a later cell calls, so the import itself must work.
    """
    sys.meta_path.insert(0, _RefusedPackage(name, why))


class _RefusedPackage(MetaPathFinder, Loader):
    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if f"{fullname}.".startswith(f"{self.name}."):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        def refused(attribute: str) -> Any:
            if attribute.startswith("__"):  # Python itself looks for these
                raise AttributeError(attribute)
            return _Refused(f"{module.__name__}.{attribute}", self.why)

        module.__dict__["__getattr__"] = refused


class _Refused:
    """A member of a refused package. Using it raises Unavailable."""

    def __init__(self, name: str, why: str) -> None:
        self._name, self._why = name, why

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Unavailable(f"{self._name} {self._why}")

    def __getattr__(self, attribute: str) -> Any:
        raise Unavailable(f"{self._name}.{attribute} {self._why}")
