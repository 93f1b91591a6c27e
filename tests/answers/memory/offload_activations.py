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
KEPT = "return tensor.detach(), tensor._version"
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
        "buffers_too",
        ("(*module.parameters(), *module.buffers())", "module.parameters()"),
    ),
    (
        "parameters_written",
        "parameters_but_not_their_views",
        (STAYS, "isinstance(tensor, torch.nn.Parameter) or "),
    ),
    ("small_written", "everything_written", (SMALL, "")),
    (
        None,
        "views_by_their_own_size",
        ("storage.nbytes() < smallest", "tensor.nbytes < 3 * smallest"),
    ),
    (None, "the_smallest_stays", ("storage.nbytes() < smallest", "storage.nbytes() <= smallest")),
    ("written_twice", "each_time", (FOUND, "ticket = None")),
    ("still_in_memory", "storages_as_keys", ("tickets = WeakKeyDictionary()", "tickets = {}")),
    (
        "still_in_memory",
        "tensor_in_the_pack",
        (
            "return ticket, tensor.dtype",
            "ticket.tensor = tensor.detach()\n        return ticket, tensor.dtype",
        ),
    ),
    (
        "address_reused",
        "by_address",
        ("tickets = WeakKeyDictionary()", "tickets = {}"),
        (
            VERSIONS,
            VERSIONS.replace("storage,", "storage.data_ptr(),").replace(
                "WeakValueDictionary()", "{}"
            ),
        ),
    ),
    (
        "address_reused",
        "by_id",
        ("tickets = WeakKeyDictionary()", "tickets = {}"),
        (
            VERSIONS,
            VERSIONS.replace("storage,", "id(storage),").replace("WeakValueDictionary()", "{}"),
        ),
    ),
    (None, "tickets_kept", (VERSIONS, VERSIONS.replace("WeakValueDictionary()", "{}"))),
    (None, "cycle", ("tensor.detach(), tensor._version", "tensor, tensor._version")),
    ("changed_silently", "no_version", (RAISE, "if False:")),
    (
        "old_numbers",
        "no_version_of_what_is_written",
        (FOUND, "ticket = versions.get(0)"),
        (WRITE, WRITE.replace("tensor._version", "0")),
    ),
    ("read_again", "read_each_time", (READ, "storage = None")),
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
    ("raises", "offset_left_out", ("tensor.storage_offset(), ", "")),
    (None, "offset_zero", ("tensor.storage_offset()", "0")),
    (None, "contiguous_strides", ("tensor.stride()\n", "torch.empty(tensor.shape).stride()\n")),
    ("raises", "the_tensor_itself", (WRITE, WRITE.replace("(flat)", "(tensor)"))),
    (
        "raises",
        "unpacked_only_once",
        (RETURN, RETURN.replace("return ", "return [") + "]"),
        ("*view = packed", "*view = packed\n        packed.clear()"),
    ),
):
    answers.edit(mistake, name, *edits)


@answers.wrong("written_twice")
@contextmanager
def each_view_on_its_own(module, store, smallest=4096):
    """Write views as new storages."""
    stays = {t.untyped_storage() for t in (*module.parameters(), *module.buffers())}

    def pack(tensor):
        if tensor.untyped_storage() in stays or tensor.untyped_storage().nbytes() < smallest:
            return tensor.detach(), tensor._version
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        return store.write(flat), tensor.dtype, tensor.shape

    def unpack(packed):
        if len(packed) == 2:
            assert packed[0]._version == packed[1]
            return packed[0]
        ticket, dtype, shape = packed
        return ticket.read().view(dtype).view(shape)

    with saved_tensors_hooks(pack, unpack):
        yield


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
            weakref.finalize(ticket, self.read.pop, id(ticket)).atexit = False
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


@answers.right
@contextmanager
def finalized_keys(module: nn.Module, store: Store, smallest: int = 4096) -> Iterator[None]:
    """Identities are keys, and weakref.finalize removes an entry with its storage."""
    parameters = [*module.parameters(), *module.buffers()]
    storages = [tensor.untyped_storage() for tensor in parameters]
    fixed = {storage._cdata: storage for storage in storages}  # keeps them alive
    newest: dict[int, tuple[int, weakref.ref]] = {}
    copies: weakref.WeakValueDictionary = weakref.WeakValueDictionary()

    def pack(tensor: Tensor) -> tuple:
        storage = tensor.untyped_storage()
        key, version = storage._cdata, tensor._version
        if key in fixed or storage.size() < smallest:
            return (tensor.detach(), version)
        if key not in newest:
            weakref.finalize(storage, newest.pop, key, None).atexit = False
            newest[key] = (-1, lambda: None)
        written, alive = newest[key]
        ticket = alive()
        if written != version or ticket is None:
            numbers = torch.empty((0,), device=tensor.device, dtype=torch.uint8)
            ticket = store.write(numbers.set_(storage))
            newest[key] = (version, weakref.ref(ticket))
        bits = tensor.is_conj(), tensor.is_neg()
        return (ticket, bits, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def unpack(packed: tuple) -> Tensor:
        first, *rest = packed
        if isinstance(first, Tensor):
            if [first._version] != rest:
                raise RuntimeError("changed in place between the forward and the backward pass")
            return first
        try:
            storage = copies[first]
        except KeyError:
            storage = first.read().untyped_storage()
            copies[first] = storage
        (conjugate, negative), dtype, *view = rest
        tensor = torch.empty((0,), device=storage.device, dtype=dtype).set_(storage, *view)
        if negative:
            tensor = torch._neg_view(tensor)
        if conjugate:
            tensor = tensor.conj()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    hooks.__enter__()
    try:
        yield
    finally:
        hooks.__exit__(None, None, None)


class Record:
    """A version of a storage, in the store and perhaps in memory again."""

    def __init__(self, ticket, version):
        self.ticket, self.version = ticket, version
        self.again = lambda: None

    def storage(self):
        storage = self.again()
        if storage is None:
            storage = self.ticket.read().untyped_storage()
            self.again = weakref.ref(storage)
        return storage


def stayed(tensor, version):
    def make():
        if tensor._version != version:
            raise RuntimeError("one of the saved tensors was modified in place")
        return tensor

    return make


def gone(record, dtype, conjugate, negative, *view):
    def make():
        storage = record.storage()
        tensor = torch.tensor([], dtype=dtype, device=storage.device).set_(storage, *view)
        if negative:
            tensor = torch._neg_view(tensor)
        return tensor.conj() if conjugate else tensor

    return make


@answers.right
@contextmanager
def shared_record(module: nn.Module, store: Store, smallest: int = 4096) -> Iterator[None]:
    """All views of one version of a storage share a record."""
    records = weakref.WeakKeyDictionary()
    own = weakref.WeakSet(t.untyped_storage() for t in module.parameters())
    own.update(t.untyped_storage() for t in module.buffers())

    def pack(tensor: Tensor):
        tensor = tensor.detach()
        storage, version = tensor.untyped_storage(), tensor._version
        if storage in own or len(storage) < smallest:
            return stayed(tensor, version)
        record = records[storage]() if storage in records else None
        if record is None or record.version != version:
            flat = torch.tensor([], dtype=torch.uint8, device=tensor.device)
            flat.set_(storage, 0, (len(storage),), (1,))
            record = Record(store.write(flat), version)
            records[storage] = weakref.ref(record)
        view = tensor.storage_offset(), tensor.shape, tensor.stride()
        return gone(record, tensor.dtype, tensor.is_conj(), tensor.is_neg(), *view)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda make: make()):
        yield
