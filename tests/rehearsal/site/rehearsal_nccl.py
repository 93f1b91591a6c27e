"""A stand-in for NCCL, if `REHEARSAL_NCCL=1`.

Gloo does its work, but only for CUDA tensors. The stand-in has NCCL's requirements: a GPU for each
rank, and splits in which all ranks of the parent take part. torch's own Python code above it runs
as on GPUs.
"""

import os
import sys
import time


def change(module):
    """Add the stand-in for NCCL to torch.distributed."""
    if os.environ.get("REHEARSAL_NCCL") != "1":
        return
    torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
    group_class = process_group_class(module)
    module.ProcessGroupNCCL = dist.ProcessGroupNCCL = group_class
    module._NCCL_AVAILABLE = True
    torch._C._nccl_version = lambda: 22809  # torch logs it with an error
    torch._C._nccl_version_suffix = lambda: b""
    module.split_group = split_group_of(module)  # torch's own calls NCCL's in C++
    module.batch_isend_irecv = in_a_batch(module.batch_isend_irecv, torch)


def in_a_batch(batch_isend_irecv, torch):
    """Return a `batch_isend_irecv` whose messages do not wait for each other."""

    def call(operations):
        torch.ops.rehearsal.set_in_batch(True)
        try:
            return batch_isend_irecv(operations)
        finally:
            torch.ops.rehearsal.set_in_batch(False)

    return call


class Options:
    """The attributes of NCCL's options that torch.distributed uses."""

    def __init__(self, is_high_priority_stream=False):
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = self.split_from = self.split_color = None
        self.global_ranks_in_group, self.group_name = [], ""


def meet(store, key, size, call):
    """Wait for all `size` ranks, like a call of NCCL in which all of them take part."""
    store.add(key, 1)
    deadline = time.monotonic() + float(os.environ.get("REHEARSAL_DEADLOCK_SECONDS", "20"))
    while store.add(key, 0) < size:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"deadlock (rehearsal of NCCL): {call} waits for all {size} ranks of the parent"
            )
        time.sleep(0.005)


def process_group_class(module):
    """Return the class `ProcessGroupNCCL`, which is derived from Gloo's."""
    alive = []  # keeps groups, because otherwise C++ would return a plain ProcessGroupGloo

    class ProcessGroupNCCL(module.ProcessGroupGloo):
        supports_splitting = True

        def __init__(self, store, rank, size, options):
            super().__init__(store, rank, size, timeout=options._timeout)
            self._own_store, self._own_rank, self._own_size = store, rank, size
            self._own_options, self._splits = options, 0
            alive.append(self)

        def _split(self, call):
            self._splits += 1
            meet(self._own_store, f"split{self._splits}", self._own_size, call)

        def eager_connect_single_device(self, device):
            if (parent := self._own_options.split_from) is not None:
                ranks = self._own_options.global_ranks_in_group
                parent._split(f"ncclCommSplit for {ranks}")
                return
            self._own_store.set(f"gpu{self._own_rank}", str(device.index))
            gpus = [self._own_store.get(f"gpu{i}").decode() for i in range(self._own_size)]
            if len(set(gpus)) < self._own_size:
                raise RuntimeError(f"rehearsal of NCCL: Duplicate GPU detected: {gpus}")

        def perform_nocolor_split(self, device):
            self._split("ncclCommSplit with NCCL_SPLIT_NOCOLOR")

        def _group_start(self):
            pass

        def _group_end(self):
            pass

    ProcessGroupNCCL.Options = Options
    return ProcessGroupNCCL


def split_group_of(module):
    """Return a `split_group` that makes a new group for each part of the default group."""

    def split_group(parent_pg=None, split_ranks=None, timeout=None, group_desc=None, **_):
        own = None
        for ranks in split_ranks:
            made = module.new_group(ranks, timeout=timeout, group_desc=group_desc)
            own = made if module.get_rank() in ranks else own
        return own

    return split_group
