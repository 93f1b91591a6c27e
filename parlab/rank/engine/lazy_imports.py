"""Delays the import of modules that ranks seldom use: PyTorch's compiler, and ipyparallel's client.

Optimizers, `DistributedDataParallel`, and checkpointing import `torch._dynamo` only to exclude
themselves from compiled code, and `backward(gradient)` imports `symbolic_shapes` only to compare
shapes. On each rank, this takes seconds and 80 MiB of memory, and most labs compile nothing. On
ranks, these imports therefore return modules with only the names that are used in this way. Any
other name or submodule, such as those of `torch.compile`, loads the whole module.

An engine needs a few modules of ipyparallel, but the package itself also imports the client and the
launchers.

Python's garbage collector does not search PyTorch for reference cycles, because its modules remain
loaded. This saves a tenth of the import time, and a tenth of a second in each full collection.
"""

import atexit
import gc
import importlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
SETTINGS = f"{COMPILER}.config"
SHAPES = "torch.fx.experimental.symbolic_shapes"  # imports SymPy
CLIENT = "ipyparallel"
LARGEST = "torch"
ALONE = {SETTINGS, f"{CLIENT}.error", f"{CLIENT}.util"}  # submodules that do not need another one


def install() -> None:
    """Make this process load the compiler and the client only when they are needed."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _STAND_INS:
            spec = PathFinder.find_spec(name, path)
            if spec and spec.loader:
                spec.loader = _LazyLoader(spec.loader)
            return spec
        if name == LARGEST:
            others = (finder for finder in sys.meta_path if finder is not self)
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec = next(filter(None, specs), None)
            if spec and spec.loader:
                spec.loader = _UncollectedLoader(spec.loader)
            return spec
        if name.startswith(f"{COMPILER}.") and name != SETTINGS:
            _load(sys.modules[COMPILER])
            if loaded := sys.modules.get(name):
                return ModuleSpec(name, _Loaded(loaded), is_package=hasattr(loaded, "__path__"))
        return None


class _UncollectedLoader(Loader):
    """Loads a module and its imports, and excludes their objects from garbage collections."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # such as `get_source`, which `inspect` calls

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self.loader
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self.loader.exec_module(module)
            gc.freeze()
            atexit.register(gc.unfreeze)  # so that Python frees the objects when it ends, as usual
        finally:
            if was_enabled:
                gc.enable()


class _LazyLoader(Loader):
    """Makes a stand-in for a module, which `loader` loads only if it is needed."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_STAND_INS[module.__name__])


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if (submodule := f"{self.__name__}.{name}") in ALONE:
            return importlib.import_module(submodule)
        _load(self)
        return getattr(self, name)


class _Loaded(Loader):
    """Returns a module that was loaded during the search for it."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def _load(module: ModuleType) -> None:
    """Run the code of a module in its stand-in, unless this has been done."""
    spec = module.__spec__
    if spec is None or not isinstance(spec.loader, _LazyLoader):
        return
    module.__class__ = ModuleType
    for name in _STAND_INS[module.__name__]:
        delattr(module, name)
    spec.loader = module.__loader__ = spec.loader.loader
    spec.loader.exec_module(module)


def _nothing() -> None:
    pass


def _same(value: Any) -> Any:
    return value


def _not_compiled(function: Callable | None = None, *_: object, **__: object) -> Callable:
    return function or _same


# These names behave like the real ones in code that is not compiled, with default settings.
_STAND_INS: Mapping[str, Mapping[str, Any]] = {
    COMPILER: {
        "disable": _not_compiled,
        "graph_break": _nothing,
        "trace_rules": SimpleNamespace(clear_lru_cache=_nothing),
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    SHAPES: {"expect_true": _same, "sym_eq": operator.eq},
    CLIENT: {},
}
