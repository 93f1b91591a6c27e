"""A communicator that sends no message before its receiver has called a receive.

MPI may or may not buffer a message until then, and usually decides by its size. A correct program
does not depend on buffering.
"""

from parlab.ledger import Call
from parlab.ledger.watched import WatchedComm

# Maps the name of the method that the learner calls to the method that is called instead.
UNBUFFERED = {
    "Send": "Ssend",
    "send": "ssend",
    "Isend": "Issend",
    "isend": "issend",
    "Send_init": "Ssend_init",
}
_WRITTEN = {unbuffered: name for name, unbuffered in UNBUFFERED.items()}


class UnbufferedComm(WatchedComm):
    """A watched communicator with synchronous sends. Communicators made from it have them, too."""


for _name, _other in UNBUFFERED.items():
    setattr(UnbufferedComm, _name, getattr(WatchedComm, _other))


def written(call: Call) -> str:
    """Return the name of the call in the learner's code.

    A checked communicator calls a synchronous send instead of a send. torch uses one internal name
    for `dist.send` and `dist.isend`, but only `isend` can leave a request to wait for.
    """
    if call.api.startswith("c10d.") and call.end is None:
        return f"dist.i{call.op}" if call.op in ("send", "recv") else f"dist.{call.op}"
    return _WRITTEN.get(call.api, call.api)
