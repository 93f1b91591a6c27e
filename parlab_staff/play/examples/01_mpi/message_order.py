"""Which receive gets which message.

Rank 0 receives one result from each other rank, in the order in which they arrive. `Probe` waits
for a message from any rank and reports its source, tag, and length, so that rank 0 can allocate an
array of the right size.

**Predict** which lines are the same in each run. Run the program several times, and then change it:

- Let every rank send two messages with different tags. Messages from the same rank do not overtake
  each other. In which order does rank 0 get them?
- Let rank 0 receive the message with the second tag first. What happens to the rank that waits in
  its first `Send`?
- Replace `source=status.source` by `MPI.ANY_SOURCE`. Why can the message be too long for the array?
"""

if rank == 0:
    status = MPI.Status()
    for _ in range(comm.size - 1):  # one result from each other rank, in any order
        comm.Probe(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        result = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(result, source=status.source, tag=status.tag)
        print(f"from rank {status.source} with tag {status.tag}: {result}")
else:
    comm.Send(np.full(rank, float(rank)), dest=0, tag=10 * rank)
