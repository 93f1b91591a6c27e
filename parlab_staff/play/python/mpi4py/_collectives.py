"""The methods for blocking, non-blocking, and persistent collectives."""

import inspect
from collections.abc import Callable
from typing import Any

import mpi4py._buffer_collectives  # noqa: F401 - fills `plans`
import mpi4py._object_collectives  # noqa: F401 - fills `plans`
from mpi4py._comm import Messages
from mpi4py._exchange import plans
from mpi4py._operations import Operation, wait
from mpi4py._requests import Prequest, Request


class Collectives(Messages):
    """The methods of communicators that all ranks call together."""


def _add(name: str, plan: Callable[..., Operation], **fixed: Any) -> None:
    signature = inspect.signature(plan)
    comm, _, *rest = signature.parameters.values()
    signature = signature.replace(
        parameters=[comm.replace(name="self"), *(p for p in rest if p.kind is not p.KEYWORD_ONLY)]
    )
    value = name[0].islower()
    small = name[0].lower() + name[1:]

    def call(self: Messages, *args: Any, **kwargs: Any) -> Any:
        result = wait(plan(self, name, *args, **kwargs, **fixed)).value
        return result if value else None

    def begin(self: Messages, *args: Any, **kwargs: Any) -> Request:
        return Messages._request(self, plan(self, f"I{small}", *args, **kwargs, **fixed))

    def prepare(self: Messages, *args: Any, **kwargs: Any) -> Prequest:
        number = Messages._get(self).number
        return Prequest._prepared(lambda: plan(self, f"I{small}", *args, **kwargs, **fixed), number)

    methods = {name: call} if value else {name: call, f"I{small}": begin, f"{name}_init": prepare}
    for own, method in methods.items():
        method.__name__, method.__signature__ = own, signature
        setattr(Collectives, own, method)


for _name, _function in list(plans.items()):
    _add(_name, _function)
for _name in ("Gather", "Scatter", "Allgather", "Alltoall"):
    _add(f"{_name}v", plans[_name], same=False)
