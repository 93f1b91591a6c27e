"""Answers to `offload_activations`."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from parlab.activation_stores import Store
from parlab_staff.answers import Answers

answers = Answers("offload_activations")

STAYS = "storage in stays or "
SMALL = " or storage.nbytes() < smallest"
FOUND = "ticket = versions.get(tensor._version)"
WRITE = "ticket = versions[tensor._version] = store.write(flat)"
RAISE = "if tensor._version != version:"
VERSIONS = "versions = tickets.setdefault(storage, WeakValueDictionary())"
READ = "storage = storages.get(ticket)"
RETURN = "return ticket, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()"
WITH = "    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):\n        yield\n"

for mistake, name, *edits in (
    ("parameters_written", "parameters_too", (STAYS, "")),
    (
        "parameters_written",
        "frozen_parameters_too",
        ("*module.parameters(),", "*(p for p in module.parameters() if p.requires_grad),"),
    ),
    (None, "everything_written", (SMALL, "")),
    (None, "from_4096_bytes", (SMALL, SMALL.replace("smallest", "4096"))),
    ("written_twice", "each_time", (FOUND, "ticket = None")),
    ("still_in_memory", "storages_as_keys", ("tickets = WeakKeyDictionary()", "tickets = {}")),
    (
        "old_numbers_used",
        "by_address",
        ("tickets = WeakKeyDictionary()", "tickets = {}"),
        (
            VERSIONS,
            VERSIONS.replace("storage,", "storage.data_ptr(),").replace(
                "WeakValueDictionary()", "{}"
            ),
        ),
    ),
    (None, "tickets_of_storages", (VERSIONS, VERSIONS.replace("WeakValueDictionary()", "{}"))),
    (None, "cycle", ("tensor.detach(), tensor._version", "tensor, tensor._version")),
    ("changed_silently", "no_version", (RAISE, "if False:")),
    (
        "old_numbers_used",
        "no_version_of_what_is_written",
        (FOUND, "ticket = versions.get(0)"),
        (WRITE, WRITE.replace("tensor._version", "0")),
    ),
    (None, "read_each_time", (READ, "storage = None")),
    (
        "hooks_left",
        "never_removed",
        (
            WITH,
            "    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)\n    yield\n",
        ),
    ),
    (
        "hooks_left",
        "not_after_an_exception",
        (
            WITH,
            "    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)\n    yield\n"
            "    torch._C._autograd._pop_saved_tensors_default_hooks()\n",
        ),
    ),
    (None, "contiguous_strides", ("tensor.stride()\n", "torch.empty(tensor.shape).stride()\n")),
    (
        "raises",
        "unpacked_only_once",
        (RETURN, RETURN.replace("return ", "return [") + "]"),
        ("*view = packed", "*view = packed\n        packed.clear()"),
    ),
):
    answers.edit(mistake, name, *edits)


@answers.wrong(None)
@contextmanager
def nothing_offloaded(module, store, smallest=4096):
    yield


@answers.right
class OffloadActivations:
    """A class, with a dict of weak references that forgets storages as they are freed."""

    def __init__(self, module, store, smallest=4096):
        self.store, self.smallest = store, smallest
        self.addresses = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.addresses |= {b.untyped_storage().data_ptr() for b in module.buffers()}
        self.written, self.read = {}, {}
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)

    def __enter__(self):
        self.hooks.__enter__()

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    def pack(self, tensor):
        import weakref

        storage = tensor.untyped_storage()
        if storage.data_ptr() in self.addresses or storage.nbytes() < self.smallest:
            stays, version = tensor.detach(), tensor._version
            return lambda: self.checked(stays, version)
        key = storage._cdata
        if key not in self.written:
            self.written[key] = {}
            weakref.finalize(storage, self.written.pop, key).atexit = False
        known = self.written[key].get(tensor._version)
        ticket = known and known()
        if ticket is None:
            numbers = torch.tensor([], dtype=torch.uint8).set_(storage)
            ticket = self.store.write(numbers)
            self.written[key][tensor._version] = weakref.ref(ticket)
        layout = tensor.shape, tensor.stride(), tensor.storage_offset()
        dtype = tensor.dtype
        return lambda: self.restored(ticket, dtype, layout)

    @staticmethod
    def checked(tensor, version):
        if tensor._version == version:
            return tensor
        raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} was modified in place")

    def restored(self, ticket, dtype, layout):
        import weakref

        reference = self.read.get(id(ticket))
        numbers = reference and reference()
        if numbers is None:
            numbers = ticket.read().untyped_storage()
            self.read[id(ticket)] = weakref.ref(numbers)
            weakref.finalize(ticket, self.read.pop, id(ticket), None).atexit = False
        flat = torch.tensor([], dtype=torch.uint8).set_(numbers).view(dtype)
        return flat.as_strided(*layout)

    @staticmethod
    def unpack(restore):
        return restore()


answers.edit(  # buffers that are not persistent are no part of the state
    "parameters_written",
    "state_of_the_module",
    ("(*module.parameters(), *module.buffers())", "module.state_dict(keep_vars=True).values()"),
)
answers.right_edit("copy_of_what_is_written", ("store.write(flat)", "store.write(flat.clone())"))


@answers.right
@contextmanager
def as_strided(module: nn.Module, store: Store, smallest: int = 4096) -> Iterator[None]:
    """Views are restored with as_strided on the bytes that were read."""
    own = [weakref.ref(t.untyped_storage()) for t in (*module.parameters(), *module.buffers())]
    last_ticket = weakref.WeakKeyDictionary()
    last_read = weakref.WeakKeyDictionary()

    def recall(table, key):
        return table[key]() if key in table else None

    def as_bytes(storage):
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def pack(tensor: Tensor):
        storage = tensor.untyped_storage()
        if storage.nbytes() < smallest or any(reference() is storage for reference in own):
            return {"stays": tensor.detach(), "version": tensor._version}
        versions = last_ticket.setdefault(storage, {})  # of the newest version only
        ticket = recall(versions, tensor._version)
        if ticket is None:
            ticket = store.write(as_bytes(storage))
            versions.clear()
            versions[tensor._version] = weakref.ref(ticket)
        view = tensor.size(), tensor.stride(), tensor.storage_offset()
        bits = tensor.is_conj(), tensor.is_neg()
        return {"ticket": ticket, "dtype": tensor.dtype, "view": view, "bits": bits}

    def unpack(packed):
        if "stays" in packed:
            if packed["stays"]._version != packed["version"]:
                raise RuntimeError("an operation in place has changed a tensor that was saved")
            return packed["stays"]
        ticket, dtype = packed["ticket"], packed["dtype"]
        storage = recall(last_read, ticket)
        if storage is None:
            numbers = ticket.read()
            storage = numbers.untyped_storage()
            last_read[ticket] = weakref.ref(storage)
        else:
            numbers = as_bytes(storage)
        whole = numbers[: len(numbers) // dtype.itemsize * dtype.itemsize]
        tensor = whole.view(dtype).as_strided(*packed["view"])
        conjugate, negative = packed["bits"]
        tensor = torch._neg_view(tensor) if negative else tensor
        return tensor.conj() if conjugate else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
