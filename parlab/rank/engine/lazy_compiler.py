"""Delays the import of PyTorch's compiler until something compiles.

Optimizers, `DistributedDataParallel`, and checkpointing import `torch._dynamo` only to exclude
themselves from compiled code. On each rank, the import takes seconds and 80 MiB of memory, and most
labs compile nothing. On ranks, `import torch._dynamo` therefore returns a module that has only the
names that these use. Any other name or submodule, such as those of `torch.compile`, loads it all.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
SETTINGS = f"{COMPILER}.config"  # imports nothing of the compiler


def install() -> None:
    """Make this process load the compiler only when it is needed."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == COMPILER:
            spec = PathFinder.find_spec(name, path)
            if spec and spec.loader:
                spec.loader = _LazyLoader(spec.loader)
            return spec
        if name.startswith(f"{COMPILER}.") and name != SETTINGS:
            _load(sys.modules[COMPILER])
            if loaded := sys.modules.get(name):
                return ModuleSpec(name, _Loaded(loaded), is_package=hasattr(loaded, "__path__"))
        return None


class _LazyLoader(Loader):
    """Makes the module that stands for the compiler."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_STAND_INS)


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" == SETTINGS:
            return importlib.import_module(SETTINGS)
        _load(self)
        return getattr(self, name)


class _Loaded(Loader):
    """Returns a module that was loaded while it was searched for."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def _load(module: ModuleType) -> None:
    """Run the compiler's own code in the module that stands for it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    spec = module.__spec__
    if spec is None or not isinstance(spec.loader, _LazyLoader):
        return
    module.__class__ = ModuleType
    for name in _STAND_INS:
        delattr(module, name)
    spec.loader = module.__loader__ = spec.loader.loader
    spec.loader.exec_module(module)


def _nothing() -> None:
    pass


def _not_compiled(function: Callable | None = None, *_: object, **__: object) -> Callable:
    return function if function else lambda function: function


# What the compiler does with code that is not compiled, under its default settings.
_STAND_INS: dict[str, Any] = {
    "disable": _not_compiled,
    "graph_break": _nothing,
    "trace_rules": SimpleNamespace(clear_lru_cache=_nothing),
    "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
}
