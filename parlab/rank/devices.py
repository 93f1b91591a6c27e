"""Chooses the device on which a rank computes."""

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
        one_gpu_each: True if every rank has its own GPU, as NCCL requires.
        name: the GPU's name; "" on the CPU.
        why_not: why a GPU that torch finds is not used; "" otherwise.
    """

    device: torch.device
    one_gpu_each: bool
    name: str = ""
    why_not: str = ""


def local_rank() -> int:
    """Return this rank's number among the ranks of its node, from 0."""
    return int(next((os.environ[v] for v in LOCAL_RANK_VARIABLES if v in os.environ), "0"))


def this_device() -> torch.device:
    """Return this rank's GPU, or the CPU, which then uses one thread.

    If there are more ranks than GPUs, ranks share GPUs. If torch finds a GPU, the first call is
    collective over all ranks.
    """
    if torch.cuda.device_count():
        return choose().device
    # The ranks share the machine's cores, and more threads than cores would slow down each step.
    torch.set_num_threads(1)
    return torch.device("cpu")


@functools.cache
def choose() -> Choice:
    """Choose this rank's device: a GPU if all ranks can use theirs. Collective over all ranks.

    All ranks make the same choice, even if a GPU works on only some of them. For example, a GPU in
    exclusive mode works on only one of the ranks that would share it.
    """
    from parlab.rank.world import comm

    gpu, why_not = _own_gpu()
    found = comm.allgather((str(_properties(gpu).uuid) if gpu else "", why_not))
    if all(uuid for uuid, _ in found):
        assert gpu is not None
        return Choice(gpu, len({uuid for uuid, _ in found}) == comm.size, _properties(gpu).name)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # so that no library uses a GPU from now on
    torch.set_num_threads(1)
    return Choice(torch.device("cpu"), False, why_not=next((why for _, why in found if why), ""))


def _own_gpu() -> tuple[torch.device | None, str]:
    """Make this rank's GPU current and return it, or None and the reason why it does not work."""
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
    """Make mpi4py refuse CUDA tensors, unless MPI supports them. Most MPIs would crash."""
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    if query is not None and query():
        return
    export = torch.Tensor.__dlpack__

    @functools.wraps(export)
    def export_or_refuse(self: torch.Tensor, **options: Any) -> Any:
        # mpi4py passes stream=-1 (no synchronization). Other libraries pass an actual stream.
        if self.is_cuda and options.get("stream") == -1:
            raise TypeError(
                f"comm cannot send or receive a tensor on {self.device}: this MPI reads only the "
                "host's memory. Use tensors on the CPU, or torch.distributed with group=group"
            )
        return export(self, **options)

    torch.Tensor.__dlpack__ = export_or_refuse


def _properties(gpu: torch.device) -> "torch.cuda._CudaDeviceProperties":
    return torch.cuda.get_device_properties(gpu)
