"""Why programs wait forever.

Four ranks form a ring. Each rank sends to its right neighbor and then receives from its left one.
On this page, no message is buffered. Each `Send` waits until its receiver is ready, as `Ssend`
does, and as `Send` does with large messages.

**Predict** at which line each rank is stuck. Then run the program. The page reports the deadlock as
soon as no rank can continue.

Draw an arrow from each rank to the rank that it waits for, and find the circle. Then fix the
program in one of these ways, and look at the picture each time:

- Use `Sendrecv`.
- Use `Isend`, then `Recv`, and then `Wait` on the request.
- Let even ranks send first, and odd ranks receive first. How many rounds does this take on 3 ranks?
- Let only rank 0 receive first. This ends, too, but the messages travel one after the other.
"""

right, left = (rank + 1) % world_size, (rank - 1) % world_size
x = np.full(4, float(rank))
y = np.empty(4)

comm.Send(x, dest=right)
comm.Recv(y, source=left)
print(y)
