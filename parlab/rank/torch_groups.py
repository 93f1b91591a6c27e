"""torch.distributed on the ranks: the default group, the labs' `group`, and their renewal."""

import atexit
import contextlib
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

# Long: the deadline of a rank cell ends a stuck call far sooner, and a slow one must not fail.
TIMEOUT = timedelta(minutes=30)

# Called on all ranks after torch.distributed was started anew: who made groups makes them known.
started_anew: list[Callable[[], None]] = []

_sockets: set[int] = set()  # inodes of the sockets that Gloo and its store opened
_state: dict[str, Any] = {"group": None, "store": None, "closed": False}


def start() -> dist.ProcessGroup:
    """Start torch.distributed over all ranks; return the labs' `group`, over MPI. Collective.

    The default group uses NCCL if every rank has a GPU of its own, and Gloo on the CPU. Ranks that
    share a GPU can use neither: NCCL refuses them, and Gloo cannot send their tensors. Their
    default group is `group`.
    """
    if _state["group"] is None:
        _state["mpi_group"] = MPIGroup(new_communicator())
        _track_sockets()
        _connect()
        atexit.register(_end)
    return _state["group"]


def _end() -> None:
    """End Gloo's threads while Python still runs.

    Seen once, at the end of a script: a C++ thread of a rank was ended by Python, which aborted the
    rank, and the others waited for it in MPI's own end, for ever. Likely a thread of Gloo, letting
    go of a collective's tensors after the call had returned, asked for Python's lock too late.
    """
    with contextlib.suppress(Exception):  # a group that was closed is in no state to be tidy
        dist.destroy_process_group()


def _connect() -> None:
    hosts = comm.allgather(socket.gethostname())
    same_host = len(set(hosts)) == 1
    if same_host:
        # Without it Gloo looks the host's name up, which fails on machines with no network.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    with _opening_sockets():
        store = _open_store("127.0.0.1" if same_host else hosts[0])
        _state["store"] = store
        register(_state["mpi_group"])
        backend = _default_backend()
        # Without `device_id`: it binds the default group to the GPU. Then every later group is made
        # by splitting NCCL's, also if it is not one of NCCL's, and all ranks must take part.
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
    """The key-value store that a process group meets at, on a free port of rank 0."""
    options: dict[str, Any] = {"timeout": TIMEOUT, "wait_for_workers": False}
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, comm.size, is_master=True, **options)
    port = comm.bcast(store.port if store else None)
    return store or dist.TCPStore(host, port, comm.size, is_master=False, **options)


# Gloo has no way to give up a call but its own time-out. Closing the connections it waits on is
# one: the waiting call fails at once. For that, the sockets it opens are remembered.


def _socket_inodes() -> dict[int, int]:
    """Inode → file descriptor of each socket of this process."""
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
    """Remember the sockets of every process group made from here on, by labs or libraries."""
    make: Callable = distributed_c10d._new_process_group_helper

    def make_and_remember(*args: Any, **kwargs: Any) -> Any:
        with _opening_sockets():
            return make(*args, **kwargs)

    distributed_c10d._new_process_group_helper = make_and_remember


def close() -> None:
    """Make every call that waits in Gloo or NCCL fail now. Called from the freeing thread."""
    if _state["group"] is None and not _sockets:
        return
    _state["closed"] = True
    open_now = _socket_inodes()
    for inode in _sockets & open_now.keys():
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(open_now[inode])) as connection,
        ):
            connection.getpeername()  # a listening socket has no peer, and stays
            connection.shutdown(socket.SHUT_RDWR)
    if dist.is_initialized() and dist.get_backend() == "nccl":
        distributed_c10d._abort_process_group()


def is_gone() -> bool:
    """Whether the lab destroyed the default group, and with it all others."""
    return _state["group"] is not None and not dist.is_initialized()


def renew() -> bool:
    """Start torch.distributed anew if any rank closed or destroyed it; says whether. Collective."""
    started = _state["group"] is not None
    if not comm.allreduce(int((_state["closed"] and started) or is_gone())):
        return False
    with contextlib.suppress(Exception):  # what is left of it is in no state to be tidy
        dist.destroy_process_group()
    _state["store"] = None
    _sockets.clear()
    _connect()
    for make_known in started_anew:
        make_known()
    return True
