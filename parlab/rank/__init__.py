"""The names for labs on a rank: `from parlab.rank import comm, rank, world_size, device, group`.

    rank        this process's number, 0 … world_size − 1
    world_size  number of ranks
    comm        mpi4py communicator over all ranks (the object behind `MPI.COMM_WORLD` too)
    device      torch.device of this rank: its own GPU, a GPU that ranks share, or the CPU
    group       torch.distributed process group to pass as `group=`. It uses MPI. On the CPU, that
                is many times faster than Gloo. CUDA tensors are copied through the host's memory.
                The default group uses NCCL if each rank has its own GPU. If the ranks were
                started on an emulated network, `group` is on that network (`parlab.network`)

The first use of `comm` starts MPI. The first use of `group` starts torch.distributed and is
collective: every rank must reach it. On GPUs, the first use of `device` is collective, too. The
same import works in a rank cell (`%%px`) and in a script run with
`python -m parlab.mpirun -n 4 script.py`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    rank: int
    world_size: int
    comm: MPI.Intracomm
    device: torch.device
    group: dist.ProcessGroup

__all__ = ["comm", "device", "group", "rank", "world_size"]


def __getattr__(name: str) -> Any:
    # Lazy, so that a lab that only uses mpi4py does not wait for torch, and importing is fast.
    if name in ("comm", "rank", "world_size"):
        from parlab.rank.world import comm

        values = {"comm": comm, "rank": comm.rank, "world_size": comm.size}
    elif name == "device":
        from parlab.rank.devices import this_device

        values = {"device": this_device()}
    elif name == "group":
        try:
            values = {"group": _start_group()}
        except AttributeError as error:  # `import` would take this for a missing name and try again
            raise RuntimeError(f"torch.distributed did not start: {error}") from error
    else:
        raise AttributeError(f"module 'parlab.rank' has no attribute {name!r}")
    globals().update(values)
    return values[name]


def _start_group() -> "dist.ProcessGroup":
    """Return the labs' `group`. It is on the emulated network if the ranks were started on one."""
    from parlab.network.labels import network_of_rank

    if network := network_of_rank():
        from parlab.network.registry import emulated_group

        return emulated_group(network)
    from parlab.rank.torch_groups import start

    return start()
