"""One rank of a lab: runs the lab's cells in order, each when it is told, and writes how it went.

    python -m parlab.gpu_check.rank FOLDER

FOLDER has `job.json` (see `parlab.gpu_check.lab.Job`) and `go`, the number of the last cell that
may run; each rank adds a line of JSON to its own `rank<n>.jsonl` after each cell.
"""

import ast
import contextlib
import ctypes
import io
import json
import linecache
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from parlab.gpu_check import display
from parlab.gpu_check.absent import NotHere, refusing_module
from parlab.gpu_check.cells import Cell, read

POLL_SECONDS = 0.002
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
# torch 2.13's names, and what they were before.
NEWER_NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
PICTURES = "parlab.plots"


def this_rank() -> int:
    """This process's number, known before MPI or torch has started."""
    return int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))


def start(job: dict[str, Any], folder: Path) -> list[str]:
    """Start torch.distributed, and what cells import; returns what a reader should know."""
    display.install()
    refusing_module(PICTURES, "is left out: pictures are not drawn here")
    import torch
    import torch.distributed as dist

    notes = []
    for new, old in NEWER_NAMES.items():
        if not hasattr(dist, new):
            setattr(dist, new, getattr(dist, old))
            notes.append(f"torch {torch.__version__} calls dist.{new} {old}: put in place")
    if job["mpi"]:
        from parlab.rank import device, group

        return [*notes, f"MPI; group: {type(group).__name__}, {dist.get_backend()}, {device.type}"]
    device = _device(job)
    nccl = device.type == "cuda" and torch.cuda.device_count() >= job["ranks"]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # or Gloo looks the host's name up
    dist.init_process_group(
        "nccl" if nccl else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=this_rank(),
        world_size=job["ranks"],
        timeout=timedelta(seconds=job["seconds"]),
        device_id=device if nccl else None,
    )
    from parlab.gpu_check import without_mpi

    without_mpi.install(job["lab"][3:], device)
    return [*notes, f"no MPI; group: {dist.get_backend()}, {device.type}"]


def _device(job: dict[str, Any]) -> Any:
    import torch

    if job["device"] == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", this_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def run(cell: Cell, names: dict[str, Any]) -> dict[str, Any]:
    """Run the cell among `names`; how it ended, what it printed and showed."""
    file = f"<{cell.id}>"
    # inspect.getsource, which Triton uses, finds the code there.
    linecache.cache[file] = (len(cell.source), None, cell.source.splitlines(keepends=True), file)
    printed, began = io.StringIO(), time.perf_counter()
    display.shown.clear()
    status, why = "passed", ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.source, file, "exec"), names)
            _finish_kernels()
    except NotHere as error:
        status, why = "skipped", str(error)
    except ModuleNotFoundError as error:
        # A part of parlab that is missing lies behind a module that refuses.
        ours = (error.name or "").startswith("parlab.")
        status, why = "skipped", f"{error.name} {'needs MPI' if ours else 'is not installed'}"
    except BaseException as error:
        status, why = "failed", _told(error, file)
    return {
        "status": status,
        "why": why,
        "text": printed.getvalue().splitlines(),
        "values": json.loads(json.dumps(display.shown)) if display.shown else None,
        "seconds": round(time.perf_counter() - began, 3),
    }


def _finish_kernels() -> None:
    """Wait for the GPU: its errors belong to the cell that started the kernel."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _told(error: BaseException, file: str) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f" (line {lines[-1]} of the cell)" if lines else ""
    return f"{type(error).__name__}: {error}{where}"[:2000]


def defined(source: str) -> set[str]:
    """The names that a cell's code defines at its top level, at most."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def read_names(source: str) -> set[str]:
    """The names that a cell's code reads."""
    nodes = ast.walk(ast.parse(source))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _told_to(folder: Path, number: int) -> None:
    while True:
        with contextlib.suppress(OSError, ValueError):
            if int((folder / "go").read_text()) >= number:
                return
        time.sleep(POLL_SECONDS)


def reports(job: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """Run the cells that are named in the job, in order; a report of each, by its id."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module  # objects of the lab's classes are sent by this name
    cells = {cell.id: cell for cell in read(Path(job["notebook"]))}
    lacking: dict[str, str] = {}  # name → the cell that would have defined it, and has not
    for id in job["left_out"]:
        lacking |= dict.fromkeys(defined(cells[id].source), id)
    for number, id in enumerate(job["cells"]):
        _told_to(folder, number)
        cell = cells[id]
        if cell.targets is not None and this_rank() not in cell.targets:
            yield {"cell": id, "status": "idle"}
            continue
        report = run(cell, module.__dict__)
        if report["status"] == "passed":
            for name in defined(cell.source):
                lacking.pop(name, None)
        else:
            if report["status"] == "failed" and (used := read_names(cell.source) & lacking.keys()):
                built_on = lacking[min(used)]
                report |= {"status": "skipped", "why": f"builds on {built_on}: {report['why']}"}
            if not report["why"].startswith(PICTURES):  # a picture is nothing to build on
                lacking |= dict.fromkeys(defined(cell.source), id)
        yield {"cell": id, **report}


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    with (folder / f"rank{this_rank()}.jsonl").open("a", buffering=1) as log:
        print(json.dumps({"notes": start(job, folder)}), file=log)
        for report in reports(job, folder):
            print(json.dumps(report), file=log)
    sys.stdout.flush()
    sys.stderr.flush()
    # Every rank has reported: what destructors of process groups would wait for is of no interest.
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
