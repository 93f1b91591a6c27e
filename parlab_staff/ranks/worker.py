"""One rank of a `RankPool`: runs the pool's calls until the pool closes the connection.

python -m parlab_staff.ranks.worker SOCKET
"""

import contextlib
import faulthandler
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from parlab_staff.ranks.connection import stack_file

POLL_SECONDS = 0.001
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")


def this_rank() -> int:
    """Return this process's rank, which is known before MPI or torch starts."""
    return int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))


def main(path: str, frees: bool) -> None:
    from parlab.rank.engine import lazy_imports

    lazy_imports.install()  # as on a lab's ranks
    if frees:
        from parlab.rank.engine import freeing

        freeing.prepare()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    _answer(connection, {"rank": this_rank(), "pid": os.getpid()})
    while True:
        request = _next(requests)
        if request["function"] == "recover":
            _recover()
            _answer(connection, {"value": None})
        else:
            answer = _run_freed(request) if frees else _run(request, Path(path).parent)
            _answer(connection, answer)


def _read(connection: socket.socket, requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Read requests. After the last one, end this rank and all processes that it started."""
    with contextlib.suppress(OSError, ValueError):
        for line in connection.makefile("rb"):
            requests.put(json.loads(line))
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _next(requests: "queue.SimpleQueue[dict[str, Any]]") -> dict[str, Any]:
    """Return the next request. While waiting, let MPI make progress, so that others can send."""
    while True:
        with contextlib.suppress(queue.Empty):
            return requests.get(timeout=POLL_SECONDS)
        if world := sys.modules.get("parlab.rank.world"):
            world.pristine_self.Iprobe()


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _called(request: dict[str, Any]) -> dict[str, Any]:
    """Call the function. Return its value or its error."""
    module, _, function = request["function"].partition(":")
    try:
        value = getattr(importlib.import_module(module), function)(*request["arguments"])
        json.dumps(value)
    except BaseException:
        return {"error": f"rank {this_rank()}:\n{traceback.format_exc()}"}
    return {"value": value}


def _run(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    with stack_file(folder, this_rank()).open("w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(request["seconds"], exit=True, file=stack)
        try:
            return _called(request)
        finally:
            faulthandler.cancel_dump_traceback_later()


# Ranks that free themselves


def _run_freed(request: dict[str, Any]) -> dict[str, Any]:
    """Call the function. The answer is `freed` if this rank had to be freed."""
    from parlab_staff.ranks.deadline import Deadline

    answer: dict[str, Any] = {"freed": True}
    with contextlib.suppress(KeyboardInterrupt):  # the deadline's interrupt may arrive late
        with Deadline(request["seconds"]) as deadline:
            answer = _called(request)
        if deadline.passed:
            answer = {"freed": True}
        time.sleep(0)
    return answer


def _recover() -> None:
    """Renew the handles of communicators, so that the next call receives no old message."""
    from parlab.rank.engine.recovery import recover

    recover({}, 0)


if __name__ == "__main__":
    main(sys.argv[1], "--frees" in sys.argv)
