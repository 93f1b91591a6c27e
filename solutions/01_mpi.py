# %% [markdown]
# # Lab 01: Message passing
#
# Four processes, nothing shared, and one way to cooperate: messages. You measure what a message
# costs, see a program wait for itself for ever, and build the collectives that all of training
# on many devices stands on. In the end you have an all-reduce that sends no byte more than it
# must, and you run it against the ones that real training uses.
#
# | | |
# |---|---|
# | **You will be able to** | predict what a message costs from α and β; read a deadlock from the lines where ranks are stuck, and mend it; build a broadcast in ⌈log₂ N⌉ rounds; build reduce-scatter, all-gather and all-reduce on a ring, for any length and any number of ranks; say when a ring wins and when it does not |
# | **Time** | 100 minutes |
# | **You need** | Python and NumPy. Nothing about parallel programming, and no GPU |
# | **Background** | [chapter 01](../book/01_mpi.md) of the book explains what you build here |
#
# Start the ranks: four processes, each with a Python of its own. Cells that begin with `%%px` run
# on all of them, other cells in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px
import statistics
import time

import numpy as np
from mpi4py import MPI

from parlab.checks import mpi as check
from parlab.chunks import chunk
from parlab.costs import collectives
from parlab.ledger import Ledger
from parlab.rank import comm, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# `comm` is the *communicator*: the ranks that can talk to each other, numbered from 0.
# **Predict** what the next cell prints. How many times does each line run?

# %%
# %%px
squares = [number**2 for number in range(rank + 1)]
print(f"I am rank {rank} of {world_size}, and I have {squares}")

# %% [markdown]
# One program, four processes, four different values in a variable of the same name. A rank sees
# another's variable only if that rank sends it. `Send` and `Recv`, with a capital letter, send
# the memory of an array; the receiver brings an array of its own for it to land in.

# %%
# %%px
number, last = np.array([0.0]), world_size - 1
if rank == 0:
    number[0] = 42.0
    comm.Send(number, dest=last)
if rank == last:
    comm.Recv(number, source=0)
print(number)

# %% [markdown]
# The check cells below run your functions on all ranks, on fewer of them, and on ranks that are
# numbered in another order. So inside a function use its argument: `comm.rank` and `comm.size`,
# not the notebook's `rank` and `world_size`. If you are stuck on an exercise,
# `use_reference("its_name")` in a `%%px` cell puts a solution in its place, and you go on with the
# next.
#
# # Part A: one message
#
# ## 1. Ping-pong
#
# *Difficulty 2/5, 10 minutes.*
#
# How long does a message take? Two ranks have two clocks, which do not agree. So rank 0 sends,
# rank 1 sends as many bytes back, and rank 0 reads its own clock before and after: half of that
# is one message. A single measurement says little, since other programs get in the way. Take the
# median of `repeats` round trips, one after the other (of an even number of them, the mean of the
# two in the middle).
#
# **Predict** before you measure: how long do 8 bytes take, from one process to another on the
# same machine? And 8 MB?
#
# <details><summary>Hint 1</summary>
#
# Ranks 0 and 1 do different things in the same function: `if comm.rank == 0:` … `elif comm.rank
# == 1:` … What does rank 2 do?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `np.zeros(size, dtype=np.uint8)` has one byte an element. Rank 0 notes
# `time.perf_counter()`, calls `Send` and then `Recv`, and notes it again; rank 1 calls `Recv` and
# then `Send`. `statistics.median` does the rest.
# </details>


# %% tags=["exercise", "timed"] exercise="ping_pong"
# %%px
def ping_pong(size: int, repeats: int, comm: MPI.Intracomm) -> float | None:
    """Seconds that a message of `size` bytes takes between ranks 0 and 1.

    Rank 0 sends `size` bytes to rank 1, which sends as many back (whatever is in them), `repeats`
    times, and nothing else is sent. Returns, on rank 0, half of the median round trip; on all
    other ranks None. Ranks 2, 3, … send nothing. `comm` has 2 ranks or more.
    """
    # BEGIN SOLUTION
    if comm.rank > 1:
        return None
    message = np.zeros(size, dtype=np.uint8)
    round_trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(message, dest=1)
            comm.Recv(message, source=1)
        else:
            comm.Recv(message, source=0)
            comm.Send(message, dest=0)
        round_trips.append(time.perf_counter() - start)
    return statistics.median(round_trips) / 2 if comm.rank == 0 else None
    # END SOLUTION


# %% tags=["check"] exercise="ping_pong" points=2
# %%px --timeout 20
check.ping_pong(ping_pong)

# %% tags=["hidden-check"] exercise="ping_pong" points=1
# %%px --timeout 20
ledger = Ledger()
late = [0.1, 0.008, 0.2, 0.02, 0.008, 0.008, 0.1] if rank == 1 else []
seconds = ping_pong(1000, 7, check.late_answers(comm, ledger, late))
check.show_values(
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    measured=seconds is None if rank else check.is_median(seconds, ledger.calls),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Under a microsecond to a few for 8 bytes, when a core is free for each rank; some milliseconds for
# 8 MB, at a few gigabytes a second. The next cell has the numbers of *this* machine: a million
# times the bytes, and far from a million times the time.
# </details>
#
# Now measure, from 8 bytes to 8 MiB.

# %% tags=["nbval-ignore-output"]
# %%px
sizes = [8 * 4**k for k in range(11)]
ping_pong(8, 500, comm)  # the first messages between two ranks set up what later ones use
seconds = [ping_pong(size, 100 if size < 1e5 else 20, comm) for size in sizes]
if rank == 0:
    for size, one in zip(sizes, seconds, strict=True):
        print(f"{size:>9,} bytes: {1e6 * one:>9,.1f} µs, {size / one / 1e9:6.2f} GB/s")

# %% [markdown]
# ## 2. Two numbers for a link
#
# *Difficulty 3/5, 10 minutes.*
#
# Small messages all take about the same time, and large ones a time in proportion to their size.
# The simplest model that says both is
#
# $$T(S) = \alpha + S\,\beta$$
#
# with the *latency* α in seconds a message, and β in seconds a byte, one over the *bandwidth*.
# Find the two from measurements.
#
# Mind what the measurements are: their error is some per cent *of each*. One per cent of an 8 MiB
# message is longer than all of an 8-byte message. A fit that makes the sum of squared errors in
# seconds small does not see α at all. What you want is a small *relative* error at every size.
#
# **Predict**: at which size is half of the time latency? Write it with α and β.
#
# <details><summary>Hint 1</summary>
#
# Divide the equation for each measurement by its measured time $T_i$:
# $\alpha \cdot \frac{1}{T_i} + \beta \cdot \frac{S_i}{T_i} = 1$. That is linear in α and β.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `np.linalg.lstsq(columns, np.ones(n), rcond=None)[0]` with a column of $1/T_i$ and one of
# $S_i/T_i$ (`np.stack([…, …], axis=1)`).
# </details>


# %% tags=["exercise"] exercise="fit_alpha_beta"
# %%px
def fit_alpha_beta(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """α in seconds and β in seconds a byte, of α + size·β that fits best by relative error.

    `seconds[i]` is the time of a message of `sizes[i]` bytes.
    """
    # BEGIN SOLUTION
    times = np.array(seconds)
    columns = np.stack([1 / times, np.array(sizes) / times], axis=1)
    alpha, beta = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0]
    return float(alpha), float(beta)
    # END SOLUTION


# %% tags=["check"] exercise="fit_alpha_beta" points=2
# %%px --timeout 20
check.fit_alpha_beta(fit_alpha_beta)

# %% tags=["hidden-check"] exercise="fit_alpha_beta" points=1
# %%px --timeout 20
alpha, beta = fit_alpha_beta([8, 4096, 2**21], [2e-6 + n / 4e9 for n in (8, 4096, 2**21)])
lengths = [8 * 4**k for k in range(11)]
late = [1.2, *(0.97, 1.03) * 4, 0.97, 1.2]  # the smallest and the largest came late
noisy = [(2e-6 + n / 4e9) * times for n, times in zip(lengths, late, strict=True)]
of_noisy = fit_alpha_beta(lengths, noisy)
check.show_values(
    alpha=f"{alpha:.3g}",
    beta=f"{beta:.3g}",
    alpha_of_noisy=bool(abs(of_noisy[0] / 2e-6 - 1) < 0.15),
    beta_of_noisy=bool(abs(of_noisy[1] * 4e9 - 1) < 0.1),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Half of the time is latency where $S\beta = \alpha$, at $S = \alpha/\beta$.
# </details>
#
# A model is worth something when it says what was not measured. The next cell fits, predicts a
# message of 300 kB that the fit has not seen, and then measures it.

# %% tags=["nbval-ignore-output"]
# %%px
measured = ping_pong(300_000, 100, comm)
if rank == 0:
    alpha, beta = fit_alpha_beta(sizes, seconds)
    link = collectives.Link(alpha, beta)
    predicted = collectives.message(300_000).seconds(link)
    print(f"α = {1e6 * alpha:.2f} µs, 1/β = {1e-9 / beta:.1f} GB/s")
    print(f"half of the time is latency at {link.half_size:,.0f} bytes")
    print(f"300 kB: predicted {1e6 * predicted:.0f} µs, measured {1e6 * measured:.0f} µs")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 100
from parlab import plots

figure = plots.figure(
    "Small messages cost α, large ones β a byte",
    y="time of one message (s)",
    xaxis=plots.bytes_axis(sizes[0], sizes[-1]),
    yaxis_type="log",
)
figure.add_scatter(x=sizes, y=seconds, mode="markers", **plots.line("reference", "measured"))
modelled = [collectives.message(size).seconds(link) for size in sizes]
figure.add_scatter(x=sizes, y=modelled, mode="lines", **plots.line("model", "α + size·β"))
plots.show(figure)

# %% [markdown]
# Where the points leave the line, something else happens than the model knows: small messages
# are copied through a buffer, large ones wait for their receiver, and messages larger than a
# cache are read from memory. A factor of two or three is a good result for two numbers that span
# six orders of magnitude.
#
# # Part B: everybody at once
#
# ## 3. A deadlock
#
# *Difficulty 2/5, 15 minutes.*
#
# The ranks stand in a ring. Each sends an array to its right neighbour and receives from its left
# one. This cell does it with 1 element:

# %%
# %%px
right, left = (rank + 1) % world_size, (rank - 1) % world_size


def send_then_receive(length):
    message = np.full(length, float(rank))
    received = np.empty(length)
    comm.Send(message, dest=right)
    comm.Recv(received, source=left)
    return received


print(f"received {send_then_receive(1)}")

# %% [markdown]
# **Predict**: and with a million elements, 8 MB? Note your answer before you run the next cell.
# It ends with an error, by its deadline of 5 seconds. Read *at which line each rank is stuck*.

# %% tags=["raises-exception"]
# %%px --timeout 5
received = send_then_receive(1_000_000)
print("all have received")

# %% [markdown]
# All four ranks wait in `Send`. Draw an arrow from each rank to the one that it waits for: 0
# waits for 1 to receive, 1 for 2, 2 for 3, and 3 for 0. A circle. Nobody is late, and nobody
# will ever come.
#
# Why did one element work? MPI sends a small message *eagerly*: into a buffer at the receiver's,
# and `Send` returns. A large one waits for a *rendezvous* with its receiver, since nobody has
# 8 MB to spare for surprises. Where small ends and large begins differs between machines. A
# program that needs the buffer is wrong everywhere, and is found out on the largest machine.
#
# Here is another one, on a line instead of a ring: everybody sends to both neighbours. **Predict**
# which ranks wait for which. This time they are stuck at different lines.

# %% tags=["raises-exception"]
# %%px --timeout 5
message, from_left, from_right = (np.full(1_000_000, float(rank)) for _ in range(3))
last = world_size - 1
if rank < last:
    comm.Send(message, dest=rank + 1)
if rank > 0:
    comm.Send(message, dest=rank - 1)
if rank > 0:
    comm.Recv(from_left, source=rank - 1)
if rank < last:
    comm.Recv(from_right, source=rank + 1)

# %% [markdown]
# <details><summary>Which ranks are to blame?</summary>
#
# Ranks 0, 1 and 2 wait for their right neighbour to receive, rank 3 for its left one. Follow the
# arrows: 0 → 1 → 2 → 3 → 2. The circle is 2 ⇄ 3: each waits for the other to receive, while
# both want to send. Ranks 0 and 1 only stand in the queue behind them. A deadlock is always a
# circle of arrows; find it, and turn one of them round.
# </details>
#
# Your turn: write the shift around the ring so that it works for every size of message and every
# number of ranks, also 1. All messages should pass *at the same time*, or in turns, as when even
# ranks send first and odd ones receive: two turns, and a third where the last rank is even, too. A
# solution in which one rank receives first does not hang, but then rank 3 can send when rank 0 has
# received, rank 2 when rank 3 has, and so on: four messages, one after the other.
#
# Build it from messages, here and in what follows: a library's collective would do the exercise
# for you. And send the array's own memory: `send` and `recv`, in small letters, copy it into a
# pickled Python object first.
#
# The check runs your function on a communicator that buffers nothing, so that even a single byte
# has to meet its receiver.
#
# <details><summary>Hint 1</summary>
#
# MPI has one call that sends and receives at once, and gets on with whichever can go first.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `comm.Sendrecv(x, dest=…, recvbuf=received, source=…)`. Or `Isend`, which returns at once and
# gives a *request*; `Recv`; and then `request.Wait()`, without which nobody knows that the
# message has left.
# </details>


# %% tags=["exercise"] exercise="ring_shift"
# %%px
def ring_shift(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Send `x` to the right neighbour; return the array that the left neighbour sent.

    The right neighbour of rank r is r + 1, that of the last rank is rank 0. All ranks pass arrays
    of the same shape and dtype, contiguous in C order; `x` stays as it is, and so does what
    earlier calls have returned.
    """
    # BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(x)
    comm.Sendrecv(x, dest=right, recvbuf=received, source=left)
    return received
    # END SOLUTION


# %% tags=["check"] exercise="ring_shift" points=2
# %%px --timeout 20
check.ring_shift(ring_shift)

# %% tags=["hidden-check"] exercise="ring_shift" points=1
# %%px --timeout 20
ledger = Ledger()
x = np.arange(6).reshape(2, 3) + 10 * rank
received = ring_shift(x, check.turned(comm, ledger))
check.show_values(
    received=received.tolist(),
    x=x.tolist(),
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, 3),
)

# %% [markdown]
# The message that hung, mended:

# %%
# %%px --timeout 20
received = ring_shift(np.full(1_000_000, float(rank)), comm)
print(f"{received.size:,} elements between {received.min():.0f} and {received.max():.0f}")

# %% [markdown]
# ## 4. What does a tree save?
#
# *Difficulty 2/5, 5 minutes.*
#
# One rank, the *root*, has data that all need: initial weights, a configuration. It could send
# to one rank after the other, and with 1000 ranks the last would wait for 999 messages. But
# after the first message there are *two* ranks that can send. Let both. Then four, then eight.
#
# ```text
# round 1    0 → 1
# round 2    0 → 2    1 → 3
# round 3    0 → 4    1 → 5    2 → 6    3 → 7
# ```
#
# In a round, a rank sends at most one message and receives at most one. **Predict in numbers**,
# before you build it, for any number of ranks:
#
# - `rounds_one_by_one`, `rounds_tree`: rounds of the two ways;
# - `messages_tree`: messages that all ranks together send in the tree;
# - `messages_root`: messages that the root sends in the tree.
#
# The check sends both broadcasts, counts, and compares.
#
# <details><summary>Hint</summary>
#
# `(n - 1).bit_length()` is ⌈log₂ n⌉, without rounding errors. Try your formulas on 5 ranks by
# hand.
# </details>


# %% tags=["exercise"] exercise="predict_broadcast"
# %%px
def predict_broadcast(world_size: int) -> dict[str, float]:
    """`rounds_one_by_one`, `rounds_tree`, `messages_tree`, `messages_root`, for a broadcast."""
    # BEGIN SOLUTION
    rounds = (world_size - 1).bit_length()
    return {
        "rounds_one_by_one": world_size - 1,
        "rounds_tree": rounds,
        "messages_tree": world_size - 1,
        "messages_root": rounds,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_broadcast" points=1
# %%px --timeout 20
check.predict_broadcast(predict_broadcast)

# %% tags=["hidden-check"] exercise="predict_broadcast" points=1
# %%px --timeout 20
names = ["rounds_one_by_one", "rounds_tree", "messages_tree", "messages_root"]
predicted = [predict_broadcast(size) for size in (2, 5, 64, 1000)]
check.show_values(numbers=[[f"{float(p[name]):.2f}" for name in names] for p in predicted])

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 1000 ranks are reached in 10 rounds instead of 999. The messages are as many as before, 999, one
# for each rank that has to be told; only, the root sends 10 of them, and the others help.
# </details>
#
# ## 5. A broadcast in ⌈log₂ N⌉ rounds
#
# *Difficulty 3/5, 15 minutes.*
#
# Now build it.
#
# <details><summary>Hint 1</summary>
#
# Number the ranks from the root: `relative = (comm.rank - root) % comm.size`. The root is 0, and
# before each round the relative ranks 0 … `reached` − 1 have the data. Who sends to whom in
# this round? Who has nothing to do?
# </details>
#
# <details><summary>Hint 2</summary>
#
# In a round, relative rank r < `reached` sends to r + `reached`, if there is such a rank, and
# ranks from `reached` to 2·`reached` − 1 receive. The distance between two ranks is the same
# counted from the root or from 0. Then `reached` doubles.
# </details>


# %% tags=["exercise"] exercise="binomial_broadcast"
# %%px
def binomial_broadcast(x: np.ndarray, root: int, comm: MPI.Intracomm) -> None:
    """Fill `x` on every rank with the root's `x`, in ⌈log₂ N⌉ rounds.

    `x` has the same shape and dtype on all ranks, and is contiguous in C order. No rank receives
    the data twice. A rank that has returned may begin the next broadcast, from another root, while
    others are still in this one.
    """
    # BEGIN SOLUTION
    relative = (comm.rank - root) % comm.size
    reached = 1
    while reached < comm.size:
        if relative < reached:
            if relative + reached < comm.size:
                comm.Send(x, dest=(comm.rank + reached) % comm.size)
        elif relative < 2 * reached:
            comm.Recv(x, source=(comm.rank - reached) % comm.size)
        reached *= 2
    # END SOLUTION


# %% tags=["check"] exercise="binomial_broadcast" points=3
# %%px --timeout 20
check.binomial_broadcast(binomial_broadcast)

# %% tags=["hidden-check"] exercise="binomial_broadcast" points=1
# %%px --timeout 20
ledger = Ledger()
x = np.arange(5) + 100 * rank
binomial_broadcast(x, 2, check.turned(comm, ledger))
late = check.late_answers(comm, Ledger(), [0.0, 0.1, 0.0, 0.1] if rank == 0 else [])
row = np.full((4, 3), rank)  # of broadcasts, one after the other
for data, root in zip(row, (0, 1, 0, 3), strict=True):
    binomial_broadcast(data, root, late)
check.show_values(
    x=x.tolist(),
    in_a_row=row.tolist(),
    received=check.received(ledger),
    whole=all(size == x.nbytes for _, size in check.sent(ledger)),
    others=check.no_messages(ledger),
    in_time=check.within_rounds(ledger, 2),
)

# %% [markdown]
# A *ledger* watches a communicator and writes down every call. Here is what your broadcast did,
# from rank 1 as the root:

# %%
# %%px --timeout 20
ledger = Ledger()
x = np.full(1000, float(rank))
binomial_broadcast(x, 1, ledger.watch(comm))
did = [f"{'from' if call.op == 'recv' else 'to'} {call.peer}" for call in ledger.calls]
print(f"{', '.join(did)}; now {x[0]:.0f}")

# %% [markdown]
# # Part C: all-reduce on a ring
#
# In training, every rank has a gradient, and every rank needs the sum of all. That is an
# *all-reduce*. A tree would send all of the data in each of its rounds. For large data a ring
# does better: cut the data into N chunks, and keep all links busy with a chunk each, all the
# time.
#
# `chunk(length, index, parts)` gives the slice of chunk `index`. Chunks differ by at most one
# element, and the index counts around the ring: chunk −1 is the last one.

# %%
# %%px --targets 0
print([chunk(10, index, 4) for index in range(4)])
print(chunk(10, -1, 4) == chunk(10, 3, 4) == chunk(10, 7, 4))

# %% [markdown]
# ## 6. Reduce-scatter
#
# *Difficulty 4/5, 20 minutes.*
#
# First half: in the end, rank r holds chunk r of the sum, and nobody needs to hold more.
#
# A chunk travels once around the ring, and each rank on its way adds its own numbers. For chunk
# r to arrive complete at rank r, it has to *start* at rank r + 1, N − 1 steps earlier. So in the
# first round rank r sends chunk r − 1. What it receives then is a partial sum of chunk r − 2, to
# which it adds its own numbers, and that is what it sends in the next round.
#
# With 4 ranks, each line is a round, and `2:01` is chunk 2 with the numbers of ranks 0 and 1:
#
# ```text
#            rank 0 sends   rank 1 sends   rank 2 sends   rank 3 sends
# round 0    3:0            0:1            1:2            2:3
# round 1    2:30           3:01           0:12           1:23
# round 2    1:230          2:301          3:012          0:123
# ```
#
# **Predict**: how many bytes does a rank send altogether, if the data has S bytes? How does that
# change from 4 ranks to 1000?
#
# <details><summary>Hint 1</summary>
#
# In round `step` (from 0), a rank sends chunk `rank − 1 − step` and receives chunk
# `rank − 2 − step`. Receive into an array of its own, then add: the numbers in `x` are needed
# for the sum.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `Sendrecv` to the right, from the left; N − 1 rounds. `x[chunk(...)]` is a view of `x`: what you
# add to it in place (`+=`) is in `x`. A receive buffer needs the dtype of `x`, and the length of
# the chunk that comes.
# </details>


# %% tags=["exercise"] exercise="ring_reduce_scatter"
# %%px
def ring_reduce_scatter(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Sum `x` over the ranks; return this rank's chunk of the sum.

    `x` is a contiguous vector of the same length and dtype on every rank, of any length. It is
    also the work space: afterwards chunk `comm.rank` of it holds the sum, and nobody asks what
    the others hold. Returns that chunk, a view of `x`. A rank sends N − 1 messages of one chunk
    each (or none for an empty chunk) to its right neighbour, while all others send theirs.
    """
    # BEGIN SOLUTION
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    received = np.empty_like(x[chunk(len(x), 0, size)])  # chunk 0 is a longest one
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = received[: len(partial_sum)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]
    # END SOLUTION


# %% tags=["check"] exercise="ring_reduce_scatter" points=4
# %%px --timeout 20
check.ring_reduce_scatter(ring_reduce_scatter)

# %% tags=["hidden-check"] exercise="ring_reduce_scatter" points=2
# %%px --timeout 20
ledger = Ledger()
x = np.arange(11) * (rank + 1)
turned = check.turned(comm, ledger)
mine = ring_reduce_scatter(x, turned)
check.show_values(
    chunk=mine.tolist(),
    in_x=x[chunk(11, turned.rank, world_size)].tolist(),
    view=np.shares_memory(mine, x),
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, 6),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# N − 1 chunks of S/N bytes: (N − 1)/N · S. With 4 ranks that is three quarters of the data, with
# 1000 ranks all but a thousandth of it: hardly more, however many ranks there are.
# </details>
#
# A picture of the ring at work. Rank r starts with $10^r$ everywhere, so that the digits of a
# number tell whose numbers are in it: 1111 is the complete sum. Before you run it, **predict**
# how many ones each chunk of rank 0 has.

# %%
# %%px --timeout 20
x = np.full(world_size, 10**rank)
ring_reduce_scatter(x, comm)
print("  ".join(f"{number:0{world_size}d}" for number in x))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Chunk 0 of rank 0 has four ones, the complete sum. Chunk 3 it sent first, with its own number
# alone: one. To chunks 2 and 1 it added its own when they came by: two ones, then three.
# </details>
#
# ## 7. All-gather
#
# *Difficulty 3/5, 10 minutes.*
#
# Second half: rank r has chunk r, and all ranks need all chunks. Again everybody passes on to the
# right what came from the left, and this time nothing is added.
#
# **Predict**: in the first round, rank r sends the chunk it has. Which chunk does it send in the
# last one?
#
# <details><summary>Hint 1</summary>
#
# In round `step`, a rank sends the chunk that it received in the round before: `rank − step`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# What arrives can land in its place at once: `recvbuf=x[chunk(len(x), rank - step - 1, size)]`.
# </details>


# %% tags=["exercise"] exercise="ring_all_gather"
# %%px
def ring_all_gather(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Fill `x` with all chunks: chunk r is that of rank r.

    `x` is a contiguous vector of the same length and dtype on every rank, of any length; on
    entry only its chunk `comm.rank` counts. A rank sends N − 1 messages of one chunk each (or
    none for an empty chunk) to its right neighbour, while all others send theirs.
    """
    # BEGIN SOLUTION
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - step, size)]
        incoming = x[chunk(len(x), rank - step - 1, size)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
    # END SOLUTION


# %% tags=["check"] exercise="ring_all_gather" points=3
# %%px --timeout 20
check.ring_all_gather(ring_all_gather)

# %% tags=["hidden-check"] exercise="ring_all_gather" points=1
# %%px --timeout 20
ledger = Ledger()
turned = check.turned(comm, ledger)
x = np.full(11, 1000 + rank)
x[chunk(11, turned.rank, world_size)] = rank + 1
ring_all_gather(x, turned)
check.show_values(
    x=x.tolist(),
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, 6),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# In the last round, number N − 2, rank r sends chunk r − (N − 2), which is r + 2 around the ring:
# that of the rank after its right neighbour, which is the last one that the neighbour lacks.
# </details>
#
# ## 8. Ring or tree?
#
# *Difficulty 3/5, 5 minutes.*
#
# Two ways to an all-reduce of S bytes: reduce-scatter and all-gather on a ring; or a tree that
# adds everything up at rank 0 (the broadcast's messages the other way round), and a broadcast
# from there. **Predict in numbers**, before you build it:
#
# - `rounds_ring`, `rounds_tree`: rounds of the two ways, in which a rank sends at most one message
#   and receives at most one;
# - `share_ring`, `share_tree`: bytes that *rank 0* sends altogether, in multiples of S.


# %% tags=["exercise"] exercise="predict_ring"
# %%px
def predict_ring(world_size: int) -> dict[str, float]:
    """`rounds_ring`, `share_ring`, `rounds_tree`, `share_tree`, for an all-reduce."""
    # BEGIN SOLUTION
    tree = (world_size - 1).bit_length()
    return {
        "rounds_ring": 2 * (world_size - 1),
        "share_ring": 2 * (world_size - 1) / world_size,
        "rounds_tree": 2 * tree,
        "share_tree": tree,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_ring" points=1
# %%px --timeout 20
check.predict_ring(predict_ring)

# %% tags=["hidden-check"] exercise="predict_ring" points=1
# %%px --timeout 20
names = ["rounds_ring", "share_ring", "rounds_tree", "share_tree"]
predicted = [predict_ring(size) for size in (2, 5, 64, 1000)]
check.show_values(numbers=[[f"{float(p[name]):.2f}" for name in names] for p in predicted])

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The ring's share stays below 2 for any number of ranks, and its rounds grow with them. The tree's
# rounds grow with the logarithm alone, but each of them sends all of the data. With 64 ranks: 126
# rounds and 1.97 S against 12 rounds and 6 S from rank 0. Small data wants few rounds, large data
# few bytes.
# </details>
#
# ## 9. All-reduce
#
# *Difficulty 3/5, 10 minutes.*
#
# Put the two together. Gradients are matrices as often as vectors, and some are not contiguous:
# the transpose `x.T` is the same memory read in another order, `x[::2]` is every second element
# of it. Your all-reduce takes an array of any shape, and the sum has to be in *that* array
# afterwards.
#
# <details><summary>Hint 1</summary>
#
# `np.ascontiguousarray(x).reshape(-1)` makes a contiguous vector of any array: a view of the same
# memory where that is in one piece and in order, else a copy. (`x.reshape(-1)` alone may be a view
# with gaps, which no message takes.)
# </details>
#
# <details><summary>Hint 2</summary>
#
# `np.shares_memory(x, flat)` tells which of the two it was. A copy has to be written back:
# `x[...] = …`.
# </details>


# %% tags=["exercise"] exercise="ring_all_reduce"
# %%px
def ring_all_reduce(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Replace `x` on every rank by the sum over the ranks.

    `x` has any shape, the same on every rank with the same dtype, and need not be contiguous. A
    rank sends 2(N−1) messages of one chunk each (or none for an empty chunk) to a neighbour,
    together 2(N−1)/N of the data, while all others send theirs.
    """
    # BEGIN SOLUTION
    flat = np.ascontiguousarray(x).reshape(-1)
    ring_reduce_scatter(flat, comm)
    ring_all_gather(flat, comm)
    if not np.shares_memory(x, flat):  # x has gaps, or another order: flat is a copy
        x[...] = flat.reshape(x.shape)
    # END SOLUTION


# %% tags=["check"] exercise="ring_all_reduce" points=3
# %%px --timeout 20
check.ring_all_reduce(ring_all_reduce)

# %% tags=["hidden-check"] exercise="ring_all_reduce" points=2
# %%px --timeout 20
ledger = Ledger()
x = (np.arange(24) * (rank + 1)).reshape(4, 6)
turned = check.turned(comm, ledger)
ring_all_reduce(x.T[::2], turned)  # 12 elements with gaps
check.show_values(
    x=x.tolist(),
    bytes=[size for _, size in check.sent(ledger)],
    neighbours=all((to - turned.rank) % world_size in (1, 3) for to, _ in check.sent(ledger)),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, 12),
)

# %% [markdown]
# The ledger counts what an all-reduce of 8 MB sent, and the formula of the book says what it has
# to be.

# %%
# %%px --timeout 20
ledger = Ledger()
x = np.ones(1_000_000)
ring_all_reduce(x, ledger.watch(comm))
cost = collectives.ring_all_reduce(x.nbytes, world_size)
print(f"messages: {ledger.count()}, by the formula {cost.rounds}")
print(f"bytes:    {ledger.bytes_sent():,}, by the formula {cost.bytes:,.0f}")
print(f"that is {ledger.bytes_sent() / x.nbytes:.2f} of the data")

# %% [markdown]
# # Against the library
#
# Four all-reduces do the same work: yours; MPI's `comm.Allreduce`; and `torch.distributed`'s
# `all_reduce`, which training uses, once over MPI (`group`) and once over its default group: Gloo
# on the CPU, NCCL on GPUs. First, do they agree?

# %%
# %%px --timeout 100
import torch
import torch.distributed as dist

from parlab.rank import device, group

gradient = np.sin(np.arange(10_007) + rank).astype(np.float32)


def torch_all_reduce(x, over=None):
    tensor = torch.from_numpy(x).to(device)
    dist.all_reduce(tensor, group=over)
    x[...] = tensor.cpu().numpy()


sums = {}
for name, all_reduce in {
    "comm.Allreduce": lambda x: comm.Allreduce(MPI.IN_PLACE, x),
    "your ring": lambda x: ring_all_reduce(x, comm),
    "torch, group": lambda x: torch_all_reduce(x, group),
    "torch, default group": torch_all_reduce,
}.items():
    sums[name] = gradient.copy()
    all_reduce(sums[name])
    same = np.allclose(sums[name], sums["comm.Allreduce"], rtol=0, atol=1e-5)
    print(f"{name}: {'the same sum' if same else 'ANOTHER SUM'}")

# %% [markdown]
# Now their speed, from 1 KiB to 16 MiB, as *bus bandwidth*: the bytes that each rank has to send
# at least, 2(N−1)/N · S, over the time. It is the speed that a link must have had, whatever the
# number of ranks, and it can be compared with 1/β.
#
# The model needs the α and β of this situation. In the ping-pong two ranks had the machine to
# themselves; on the ring all ranks send at once and share its memory and its cores. So fit again,
# to *your* `ring_shift`, in which they do just that.
#
# **Predict**: which one wins for 1 KiB, and which for 16 MiB? Where does the ring lose its time
# when messages are small?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
def median_seconds(operations, repeats):
    """Median seconds of each operation, all taken in turn; the slowest rank counts."""
    spent = {name: [] for name in operations}
    for _ in range(repeats + 1):
        for name, operation in operations.items():
            comm.Barrier()
            start = time.perf_counter()
            operation()
            if device.type == "cuda":
                torch.cuda.synchronize()  # a GPU's collective returns before it is done
            own = time.perf_counter() - start
            spent[name].append(comm.allreduce(own, op=MPI.MAX))
    return {name: statistics.median(times[1:]) for name, times in spent.items()}


sizes = [1024 * 4**k for k in range(8)]  # bytes: 1 KiB to 16 MiB
shifts, measured = [], []
for size in sizes:
    repeats = 20 if size < 10**6 else 6
    x = np.zeros(size // 4, dtype=np.float32)
    tensor = torch.zeros(size // 4, device=device)
    shifts.append(median_seconds({"shift": lambda x=x: ring_shift(x, comm)}, repeats)["shift"])
    all_reduces = {
        "your ring": lambda x=x: ring_all_reduce(x, comm),
        "comm.Allreduce": lambda x=x: comm.Allreduce(MPI.IN_PLACE, x),
        f"torch over {dist.get_backend(group)}": lambda t=tensor: dist.all_reduce(t, group=group),
        f"torch over {dist.get_backend()}": lambda t=tensor: dist.all_reduce(t),
    }
    measured.append(median_seconds(all_reduces, repeats))
link = collectives.Link(*fit_alpha_beta(sizes, shifts))


# %% tags=["nbval-ignore-output"]
# %%px --targets 0
def bus_bandwidth(size, seconds):
    return collectives.bus_bandwidth("all_reduce", size, seconds, world_size)


figure = plots.figure(
    "The ring pays 2(N−1) latencies, and then uses the whole link",
    y="bus bandwidth (bytes/s)",
    xaxis=plots.bytes_axis(sizes[0], sizes[-1], every=2),
    yaxis_type="log",
)
styles = ["reference", *(plots.series(i, "") for i in (0, 2, 3))]
for style, name in zip(styles, measured[0], strict=False):
    y = [bus_bandwidth(size, times[name]) for size, times in zip(sizes, measured, strict=True)]
    figure.add_scatter(x=sizes, y=y, **plots.line(style, name))
modelled = [
    bus_bandwidth(size, collectives.ring_all_reduce(size, world_size).seconds(link))
    for size in sizes
]
figure.add_scatter(x=sizes, y=modelled, mode="lines", **plots.line("model", "ring, by the model"))
plots.show(figure)
print(f"α = {1e6 * link.alpha:.1f} µs, 1/β = {link.bandwidth / 1e9:.2f} GB/s while all ranks send")
for size in (sizes[0], sizes[-1]):
    times = measured[sizes.index(size)]
    ratios = [f"{name} {times[name] / times['your ring']:.2f}" for name in times]
    print(f"{size:,} bytes, time over your ring's: " + ", ".join(ratios))

# %% [markdown]
# What to look for:
#
# - **Small data.** Every all-reduce pays for its rounds, and the bytes hardly matter. Yours makes
#   2(N−1) of them; MPI picks an algorithm with fewer when the data is small (recursive doubling:
#   log₂ N rounds). With 1000 ranks that would be 1998 rounds against 10.
# - **Large data.** The curves flatten: the link is the limit. What you wrote in some twenty lines
#   of Python is in the league of the libraries, because what counts is the bytes that travel, and
#   the interpreter only steers.
# - **mpi4py** is the name of the backend that `group` has on the CPU: MPI, called by torch.
# - **Gloo** goes through TCP, with the operating system's network stack, also between two
#   processes of the same machine. MPI goes through shared memory.
# - **The model** knows nothing of additions and caches, nor of the microseconds that Python takes
#   for the lines of each round. Where it is off by a factor, ask what the ring does that a shift
#   does not.
#
# # Going further
#
# - `cluster.start(7)` gives seven ranks (also on two cores); run the check cells again. Nothing in
#   your functions should care.
# - Write `recursive_doubling_all_reduce`: in round k every rank exchanges all of its data with
#   rank `rank ^ 2**k` and adds. It takes log₂ N rounds. At which size does your ring overtake
#   it? `collectives.recursive_doubling_all_reduce` has the model's answer.
# - The ring sends a chunk, waits, adds, sends. Cut each chunk in two, and let the first half
#   travel (`Isend`, `Irecv`) while you add the second. Does that help here? When would it?
# - `comm.Split_type(MPI.COMM_TYPE_SHARED)` gives a communicator of the ranks on the same node. Use
#   it for a hierarchical all-reduce: reduce-scatter inside a node, all-reduce between nodes,
#   all-gather inside. The [chapter](../book/01_mpi.md) has the cost of it.
