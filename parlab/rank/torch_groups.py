"""Starts torch.distributed on the ranks, with the labs' `group`, and restarts it when needed."""

import atexit
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from parlab.rank import devices
from parlab.rank.world import comm, new_communicator
from parlab.runtime.torch_mpi.group import BACKEND, MPIGroup, register

# Long, so that slow calls do not fail. The deadline of a rank cell ends a stuck call much earlier.
TIMEOUT = timedelta(minutes=30)

# Functions that register existing groups again. Called on all ranks after each restart.
after_restart: list[Callable[[], None]] = []

_sockets: set[int] = set()  # inodes of the sockets that Gloo and its store opened
_state: dict[str, Any] = {"group": None, "closed": False}


def start() -> dist.ProcessGroup:
    """Start torch.distributed over all ranks, and return the labs' `group` over MPI. Collective.

    The default group uses NCCL if every rank has its own GPU, and Gloo on the CPU. Ranks that share
    a GPU can use neither: NCCL refuses them, and Gloo cannot send their tensors. Their default
    group is `group`.
    """
    if _state["group"] is None:
        if dist.is_initialized():
            raise RuntimeError(
                "torch.distributed was started before `group` was imported. Call "
                "dist.destroy_process_group() on all ranks, and then import `group` again"
            )
        _state["mpi_group"] = MPIGroup(new_communicator())
        _track_sockets()
        _connect()
        atexit.register(_end)
    return _state["group"]


def _end() -> None:
    """End Gloo's threads while Python still runs.

    Otherwise, a rank may abort at the end of a script, and the others wait for it in MPI_Finalize
    forever. This happened once, when Python ended a C++ thread. It was probably a thread of Gloo
    that released a collective's tensors, for which it requested Python's lock too late.
    """
    with contextlib.suppress(Exception):  # a closed group cannot be destroyed cleanly
        dist.destroy_process_group()


def _connect() -> None:
    hosts = comm.allgather(socket.gethostname())
    same_host = len(set(hosts)) == 1
    if same_host:
        # Otherwise, Gloo looks up the host's name, which fails on machines without a network.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    with _opening_sockets():
        store = _open_store("127.0.0.1" if same_host else hosts[0])
        register(_state["mpi_group"])
        backend = _default_backend()
        # Do not pass `device_id`, which binds the default group to the GPU. torch would then make
        # every later group by splitting the NCCL group, so all ranks would have to take part.
        dist.init_process_group(
            backend, store=store, rank=comm.rank, world_size=comm.size, timeout=TIMEOUT
        )
    shared = backend == BACKEND
    _state["group"] = dist.group.WORLD if shared else dist.new_group(backend=BACKEND)
    _state["closed"] = False


def _default_backend() -> str:
    if devices.this_device().type == "cpu":
        return "gloo"
    return "nccl" if devices.choose().one_gpu_each else BACKEND


def _open_store(host: str) -> dist.TCPStore:
    """Open the key-value store that a process group uses to connect, on a free port of rank 0."""
    options: dict[str, Any] = {"timeout": TIMEOUT, "wait_for_workers": False}
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, comm.size, is_master=True, **options)
    port = comm.bcast(store.port if store else None)
    return store or dist.TCPStore(host, port, comm.size, is_master=False, **options)


# Gloo cannot cancel a call, but a call fails at once if its connections are shut down. For this
# purpose, the functions below record the sockets that Gloo opens.


def _socket_inodes() -> dict[int, int]:
    """Return the file descriptor of each socket of this process, by inode."""
    found = {}
    for entry in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith("socket:["):
                found[int(target[8:-1])] = int(entry)
    return found


@contextlib.contextmanager
def _opening_sockets() -> Iterator[None]:
    before = _socket_inodes().keys()
    try:
        yield
    finally:
        _sockets.update(_socket_inodes().keys() - before)


def _track_sockets() -> None:
    """Record the sockets of every process group that labs or libraries make from now on."""
    make: Callable = distributed_c10d._new_process_group_helper

    def make_and_remember(*args: Any, **kwargs: Any) -> Any:
        with _opening_sockets():
            return make(*args, **kwargs)

    distributed_c10d._new_process_group_helper = make_and_remember


def close() -> None:
    """Make every call that waits in Gloo or NCCL fail. Called from the freeing thread."""
    if _state["group"] is None and not _sockets:
        return
    _state["closed"] = True
    open_now = _socket_inodes()
    for inode in _sockets & open_now.keys():
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(open_now[inode])) as connection,
        ):
            connection.getpeername()  # raises for a listening socket, which must not be closed
            connection.shutdown(socket.SHUT_RDWR)
    if dist.is_initialized() and dist.get_backend() == "nccl":
        distributed_c10d._abort_process_group()


def is_gone() -> bool:
    """Return True if the lab destroyed the default group, which destroys all other groups."""
    return _state["group"] is not None and not dist.is_initialized()


def renew() -> bool:
    """Restart torch.distributed if any rank closed or destroyed it. Collective.

    Return True if it was restarted.
    """
    started = _state["group"] is not None
    if not comm.allreduce(int((_state["closed"] and started) or is_gone())):
        return False
    with contextlib.suppress(Exception):  # closed groups cannot be destroyed cleanly
        dist.destroy_process_group()
    # The traceback of a freed call is in a reference cycle, with the group and its Gloo threads.
    gc.collect()
    _sockets.clear()
    _connect()
    for register_again in after_restart:
        register_again()
    return True
