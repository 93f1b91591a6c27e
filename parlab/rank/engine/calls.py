"""Functions that the notebook's kernel calls on every rank.

An engine imports the module of each function that it calls. These functions are in a separate
module, because importing `parlab.cluster` takes longer than importing all other modules of an
engine.
"""

import os
import shutil
from typing import NamedTuple


class RankDevice(NamedTuple):
    """The device on which a rank computes.

    Attributes:
        gpu: the GPU's name; "" for the CPU.
        one_gpu_each: True if each rank has its own GPU.
        why_not: why the ranks do not use this machine's GPUs; "" if they do, or it has none.
    """

    gpu: str = ""
    one_gpu_each: bool = False
    why_not: str = ""


class SetUpResult(NamedTuple):
    """The result of `set_up` on one rank.

    `failed` lists imports that failed: the statement, and the type and text of its error.
    """

    rank: int
    size: int
    failed: list[tuple[str, str, str]]
    device: RankDevice


def set_up(imports: list[str]) -> SetUpResult:
    """Prepare this rank for cells, and run imports again. This is the first call on each rank."""
    from IPython import get_ipython

    from parlab.rank.engine import (
        broken_state,
        cell_magics,
        children,
        communicator_table,
        interrupts,
        output_limit,
        refused_abort,
        refused_input,
        tracebacks,
    )
    from parlab.rank.world import comm

    shell = get_ipython()
    shell.autoawait = False  # otherwise, the end of a cell with `await` is never reported
    tracebacks.install(shell)
    cell_magics.install(shell)
    interrupts.install(shell.kernel)
    refused_input.install(shell.kernel)
    refused_abort.install()
    broken_state.install(shell)
    output_limit.install(shell)
    children.install(shell)
    communicator_table.install(shell)
    failed = []
    for statement in imports:
        try:
            exec(statement, shell.user_ns)
        except Exception as error:  # it failed in the lab as well, or the lab changed `sys.path`
            failed.append((statement, type(error).__name__, str(error)))
    return SetUpResult(comm.rank, comm.size, failed, device_of_rank())


def device_of_rank() -> RankDevice:
    """Return the device on which this rank computes. Collective over all ranks.

    If no node has a driver, torch is not imported, which saves seconds.
    """
    from parlab.rank.world import comm

    driver = shutil.which("nvidia-smi") and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    if not any(comm.allgather(bool(driver))):
        return RankDevice()
    import torch

    from parlab.rank.devices import choose

    choice = choose()
    why_not = choice.why_not
    if driver and not choice.name and not why_not:
        cpu_build = torch.version.cuda is None
        why_not = "torch is the CPU build" if cpu_build else "torch finds none"
    return RankDevice(choice.name, choice.one_gpu_each, why_not)


def interrupted_imports() -> list[str]:
    """Return the modules whose import an interrupt ended on this rank."""
    from parlab.rank.engine import interrupts

    return interrupts.interrupted_imports()


def unreceived() -> list[tuple[int, int] | None]:
    """Find the messages that no rank has received (see `leftovers.find`). Collective."""
    from parlab.rank.engine.leftovers import find

    return find()


def recover(generation: int, messages_only: bool) -> dict[str, object]:
    """Make this rank usable again after it was freed (see `recovery.recover`). Collective."""
    from IPython import get_ipython

    from parlab.rank.engine import recovery

    shell = get_ipython()
    hidden = shell.user_ns_hidden  # IPython's own names. Through `exit`, any object can be found
    own = {name: v for name, v in shell.user_ns.items() if v is not hidden.get(name)}
    return recovery.recover(own, generation, messages_only)
