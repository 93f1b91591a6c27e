"""Answers to `offload_activations`."""

from contextlib import contextmanager

import torch
from torch.autograd.graph import saved_tensors_hooks

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
