"""Starts torch, runs a lab's cells, and reports on them. `run_lab` calls it on each rank."""

import contextlib
import io
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from parlab.runtime import source_code
from parlab.runtime.notebook import Cell, read_cells
from parlab.runtime.source_code import bound_names, read_names
from parlab_staff.gpu_check import display, older_torch
from parlab_staff.gpu_check.cells import targets
from parlab_staff.gpu_check.stand_ins import Unavailable, refuse_package
from parlab_staff.ranks.worker import this_rank

PICTURES = "parlab.plots"


@dataclass
class LabOnRank:
    """The lab that runs on this rank.

    `lacking` maps names that were not defined, because their cell was left out or failed, to the
    id of that cell.
    """

    cells: dict[str, Cell]
    module: ModuleType = field(default_factory=lambda: ModuleType("__main__"))
    lacking: dict[str, str] = field(default_factory=dict)


_labs: list[LabOnRank] = []


def start(options: dict[str, Any]) -> list[str]:
    """Start torch.distributed and the modules that cells import. Return notes for the reader.

    Args:
        options: `notebook`, its path; `left_out`, ids of cells that must not run; `ranks`;
            `device`; `mpi`; `seconds`, the time limit; `store`, a file by which ranks connect.
    """
    notebook = Path(options["notebook"])
    lab = LabOnRank({cell.id: cell for cell in read_cells(notebook)})
    for id in options["left_out"]:
        lab.lacking |= dict.fromkeys(bound_names(lab.cells[id].code), id)
    sys.modules["__main__"] = lab.module  # pickle finds the lab's classes under this name
    _labs.append(lab)
    return _start_torch(options, notebook.stem[3:])


def _start_torch(options: dict[str, Any], topic: str) -> list[str]:
    display.install()
    refuse_package(PICTURES, "is left out: pictures are not drawn here")
    import torch
    import torch.distributed as dist

    notes = older_torch.rename()
    if options["mpi"]:
        from parlab.rank import device, devices, group

        if device.type != options["device"]:
            raise RuntimeError(f"the ranks cannot use the GPU: {devices.choose().why_not}")
        return [*notes, f"MPI; group: {type(group).__name__}, {dist.get_backend()}, {device.type}"]
    device = _device(options)
    nccl = device.type == "cuda" and torch.cuda.device_count() >= options["ranks"]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise, Gloo resolves the host's name
    from parlab_staff.gpu_check import staged_gloo, without_mpi

    staged_gloo.register()
    shared = device.type == "cuda" and not nccl
    dist.init_process_group(
        "nccl" if nccl else staged_gloo.BACKEND if shared else "gloo",
        init_method=f"file://{options['store']}",
        rank=this_rank(),
        world_size=options["ranks"],
        timeout=timedelta(seconds=options["seconds"]),
    )
    # NCCL has no message tags, so the labs' messages travel through the host there, too.
    group = dist.new_group(backend=staged_gloo.BACKEND) if nccl else dist.group.WORLD
    without_mpi.install(topic, device, group)
    return [*notes, f"no MPI; group: {dist.get_backend(group)}, {device.type}"]


def _device(options: dict[str, Any]) -> Any:
    import torch

    if options["device"] == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", this_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return device


def run_cell(id: str) -> dict[str, Any]:
    """Run the cell with this id. Return its status, printed lines, and displayed values."""
    [lab] = _labs
    cell = lab.cells[id]
    if this_rank() not in (targets(cell) or [this_rank()]):
        return {"status": "idle"}
    report = _run(cell, lab.module.__dict__)
    if report["status"] == "passed":
        for name in bound_names(cell.code):
            lab.lacking.pop(name, None)
        return report
    if report["status"] == "failed" and (used := read_names(cell.code) & lab.lacking.keys()):
        built_on = lab.lacking[min(used)]
        report |= {"status": "skipped", "why": f"builds on {built_on}: {report['why']}"}
    if not report["why"].startswith(PICTURES):  # no later cell uses a picture
        lab.lacking |= dict.fromkeys(bound_names(cell.code), id)
    return report


def _run(cell: Cell, names: dict[str, Any]) -> dict[str, Any]:
    file = f"<{cell.id}>"
    printed, began = io.StringIO(), time.perf_counter()
    display.shown.clear()
    status, why = "passed", ""
    try:
        with contextlib.redirect_stdout(printed):
            source_code.run(cell.code, file, names)  # Triton reads the lines of its kernels
            _finish_kernels()
    except Unavailable as error:
        status, why = "skipped", str(error)
    except ModuleNotFoundError as error:
        # If a module of parlab is missing, its package is a stand-in, installed without MPI.
        in_parlab = (error.name or "").startswith("parlab.")
        missing = f"{error.name} {'needs MPI' if in_parlab else 'is not installed'}"
        status, why = "skipped", older_torch.why_lacking(error) or missing
    except BaseException as error:
        lacking = older_torch.why_lacking(error)
        status, why = ("skipped", lacking) if lacking else ("failed", _description(error, file))
    return {
        "status": status,
        "why": why,
        "text": printed.getvalue().splitlines(),
        "values": json.loads(json.dumps(display.shown)) if display.shown else None,
        "seconds": round(time.perf_counter() - began, 3),
    }


def _finish_kernels() -> None:
    """Wait for the GPU, so that the cell that started a kernel gets its errors."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _description(error: BaseException, file: str) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f" (line {lines[-1]} of the cell)" if lines else ""
    return f"{type(error).__name__}: {error}{where}"[:2000]
