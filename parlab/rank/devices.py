"""Which device a rank computes on."""

import ctypes
import functools
import os
from typing import Any, NamedTuple

import torch
from mpi4py import MPI

LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")


class Choice(NamedTuple):
    """The device of a rank.

    Attributes:
        device: its own GPU, a GPU that it shares with other ranks, or the CPU.
        one_gpu_each: whether every rank has a GPU of its own, as NCCL needs.
        name: the GPU's name; "" on the CPU.
        why_not: why a GPU that torch finds is not used; "" otherwise.
    """

    device: torch.device
    one_gpu_each: bool
    name: str = ""
    why_not: str = ""


def local_rank() -> int:
    """This rank's number among the ranks of its node, from 0."""
    return int(next((os.environ[v] for v in LOCAL_RANK_VARIABLES if v in os.environ), "0"))


def this_device() -> torch.device:
    """This rank's GPU, shared in turn if ranks outnumber GPUs; else the CPU, on one thread.

    If torch finds a GPU, the first call is collective over all ranks.
    """
    if torch.cuda.device_count():
        return choose().device
    # One thread: the ranks of a laptop together have its cores, and more threads than cores
    # make each step slower, not faster.
    torch.set_num_threads(1)
    return torch.device("cpu")


@functools.cache
def choose() -> Choice:
    """Choose a device for each rank: GPUs if all ranks can use theirs. Collective over all ranks.

    The ranks must agree. For example, a GPU in exclusive mode works on only one of the ranks that
    would share it.
    """
    from parlab.rank.world import comm

    gpu, why_not = _own_gpu()
    found = comm.allgather((str(_properties(gpu).uuid) if gpu else "", why_not))
    if all(uuid for uuid, _ in found):
        assert gpu is not None
        return Choice(gpu, len({uuid for uuid, _ in found}) == comm.size, _properties(gpu).name)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what looks for a GPU from now on finds none
    torch.set_num_threads(1)
    return Choice(torch.device("cpu"), False, why_not=next((why for _, why in found if why), ""))


def _own_gpu() -> tuple[torch.device | None, str]:
    """Return this rank's GPU, made current; or None, and why a GPU that is there does not work."""
    gpus = torch.cuda.device_count()
    if not gpus:
        return None, ""
    gpu = torch.device("cuda", local_rank() % gpus)
    try:
        torch.cuda.set_device(gpu)
        torch.ones(2, device=gpu).sum().item()
    except (RuntimeError, AssertionError) as error:
        return None, str(error).splitlines()[0]
    _refuse_in_mpi()
    # Some containers switch TF32 on. The labs compare results to within 1e-4.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return gpu, ""


def _refuse_in_mpi() -> None:
    """Make mpi4py refuse CUDA tensors. Most MPIs take their addresses for the host's and crash."""
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    if query is not None and query():
        return
    export = torch.Tensor.__dlpack__

    @functools.wraps(export)
    def export_or_refuse(self: torch.Tensor, **options: Any) -> Any:
        # mpi4py asks for no synchronization with any stream, which is -1. Other libraries name one.
        if self.is_cuda and options.get("stream") == -1:
            raise TypeError(
                f"comm cannot send or receive a tensor on {self.device}: this MPI reads only the "
                "host's memory. Use tensor.cpu(), or torch.distributed with group=group"
            )
        return export(self, **options)

    torch.Tensor.__dlpack__ = export_or_refuse


def _properties(gpu: torch.device) -> "torch.cuda._CudaDeviceProperties":
    return torch.cuda.get_device_properties(gpu)
