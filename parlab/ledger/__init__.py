"""Counts calls and bytes: what a program really sends, its own code and the libraries' alike.

    ledger = Ledger()
    comm = ledger.watch(comm)    # an mpi4py communicator that enters each call in the ledger
    with ledger:                 # and every call of torch.distributed made inside, also by DDP
        loss.backward()
    print(ledger.table())

What the bytes mean. `bytes_sent` is what this rank hands to a call, `bytes_received` what the call
hands to this rank:

    call             this rank hands in               this rank gets
    send, recv       the message                      the message
    broadcast        the buffer, on the root          the buffer, elsewhere
    reduce           the buffer                       the buffer, on the root
    all_reduce       the buffer                       the buffer
    gather           its part                         all parts, on the root
    all_gather       its part                         all parts
    scatter          all parts, on the root           its part
    reduce_scatter   all parts                        its part
    all_to_all       a part for each rank             a part from each rank

Between the ranks other numbers of bytes travel, and how many depends on the algorithm: an
all-reduce of S bytes on a ring of N ranks moves 2(N−1)/N · S a rank (`parlab.costs`). To see
those, watch an algorithm that is built from messages. Python objects count as long as their
pickle is. Calls that raise are not entered; nor are messages to or from `MPI.PROC_NULL`, matched
probes, and one-sided communication. A persistent request counts each time it is started.
"""

from parlab.ledger.calls import Call
from parlab.ledger.ledger import Ledger

__all__ = ["Call", "Ledger"]
