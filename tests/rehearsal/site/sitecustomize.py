"""Makes torch use the rehearsal's device. Python imports this module when it starts.

`tests.rehearsal.environment` sets its variables. `CUDA_VISIBLE_DEVICES` has its usual effect.
"""

import importlib.abc
import importlib.machinery
import os
import sys

# By module, the module of the rehearsal that changes it after its import.
CHANGES = {
    "torch": "rehearsal_torch",
    "torch.distributed.distributed_c10d": "rehearsal_nccl",
    "parlab.kernels.interpreter": "rehearsal_kernels",
    "parlab.kernels.launches": "rehearsal_launches",
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `change` of the rehearsal's module after a module has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            importlib.import_module(CHANGES[name]).change(module)

        spec.loader.exec_module = execute_and_change
        return spec


def visible_gpus() -> list[str]:
    """Return the numbers of the GPUs that this process sees."""
    every = [str(number) for number in range(int(os.environ["REHEARSAL_ALL_GPUS"]))]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return every
    seen = []
    for number in chosen.split(","):
        if number.strip() not in every:  # CUDA ignores this number and all after it
            break
        seen.append(number.strip())
    return seen


if "REHEARSAL_ALL_GPUS" in os.environ:
    gpus = visible_gpus()
    os.environ["REHEARSAL_GPUS"] = str(len(gpus))
    os.environ["REHEARSAL_VISIBLE"] = ",".join(gpus)
    if gpus:
        sys.meta_path.insert(0, AfterImport())
