"""Counts the calls and bytes that a program really sends, both in its own code and in libraries.

    ledger = Ledger()
    comm = ledger.watch(comm)    # an mpi4py communicator that records each call in the ledger
    with ledger:                 # also records each call of torch.distributed, even those of DDP
        loss.backward()
    print(ledger.table())

`bytes_sent` are the bytes that this rank passes to a call, and `bytes_received` are the bytes that
it gets back:

    call             this rank passes                 this rank gets
    send, recv       the message                      the message
    broadcast        the buffer, on the root          the buffer, elsewhere
    reduce           the buffer                       the buffer, on the root
    all_reduce       the buffer                       the buffer
    gather           its part                         all parts, on the root
    all_gather       its part                         all parts
    scatter          all parts, on the root           its part
    reduce_scatter   all parts                        its part
    all_to_all       a part for each rank             a part from each rank

The number of bytes that travel between the ranks is different, because it depends on the algorithm.
For example, in an all-reduce of S bytes on a ring of N ranks, each rank sends 2(N−1)/N · S bytes
(`parlab.costs`). To count these, watch an algorithm that is built from messages.

The bytes of a Python object are the length of its pickle. A persistent request counts each time it
is started. The ledger does not record calls that raise an error, messages to or from
`MPI.PROC_NULL`, probes, receives with `Message.Irecv`, and one-sided communication.
"""

from parlab.ledger.calls import Call
from parlab.ledger.ledger import Ledger

__all__ = ["Call", "Ledger"]
