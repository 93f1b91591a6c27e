"""A communicator on which no message is sent before its receiver has come.

A message whose receiver has not come may be buffered, or not: MPI leaves that open, and decides by
size. A program is right when it works without.
"""

from parlab.ledger import Call
from parlab.ledger.watched import WatchedComm

# By the name that a learner calls: what is called instead.
UNBUFFERED = {
    "Send": "Ssend",
    "send": "ssend",
    "Isend": "Issend",
    "isend": "issend",
    "Send_init": "Ssend_init",
}
_WRITTEN = {unbuffered: name for name, unbuffered in UNBUFFERED.items()}


class UnbufferedComm(WatchedComm):
    """A watched communicator with synchronous sends, and so are those made from it."""


for _name, _other in UNBUFFERED.items():
    setattr(UnbufferedComm, _name, getattr(WatchedComm, _other))


def written(call: Call) -> str:
    """The name that the learner called, which a synchronous send may have replaced."""
    return _WRITTEN.get(call.api, call.api)
