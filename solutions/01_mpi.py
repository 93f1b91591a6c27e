# %% [markdown]
# # Lab 01: Message passing
#
# Four processes share no memory. They can cooperate only by sending messages. In this lab, you measure
# what a message costs, watch a program wait for itself forever, and build the collectives that training
# on many devices is based on. At the end, you have an all-reduce that sends no more bytes than necessary,
# and you compare it with the ones that real training uses.
#
# | | |
# |---|---|
# | **You will be able to** | predict what a message costs from α and β; find and fix a deadlock from the lines where ranks are stuck; build a broadcast in ⌈log₂ N⌉ rounds; build reduce-scatter, all-gather, and all-reduce on a ring, for any length and any number of ranks; explain when a ring is the best choice; make communicators for the rows and columns of a grid of ranks |
# | **Time** | 130 minutes: 110 for exercises, 15 for reading, 5 for the library |
# | **You need** | Python and NumPy. No experience with parallel programming, and no GPU |
# | **Background** | [chapter 01](../book/01_mpi.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with
# `%%px` run on all ranks, or only on rank 0 with `--targets 0`. Other cells run in this notebook.

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
# `comm` is the *communicator*: the group of ranks that can send messages to each other, numbered from 0.
# **Predict** what the next cell prints. How many times does each line run?

# %%
# %%px
squares = [number**2 for number in range(rank + 1)]
print(f"I am rank {rank} of {world_size}, and I have {squares}")

# %% [markdown]
# This is one program in four processes, and a variable with the same name has four different values. A
# rank sees another rank's variable only if that rank sends it. `Send` and `Recv`, with a capital letter,
# send the memory of an array. The receiver provides its own array for the message.

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
# The check cells below run your functions on all ranks, on fewer ranks, and on ranks that are numbered in
# another order. So use the function's argument inside a function: `comm.rank` and `comm.size`, not the
# notebook's `rank` and `world_size`. If you are stuck on an exercise, run
# `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can continue with the
# next exercise.
#
# # Part A: one message
#
# ## 1. Ping-pong
#
# *Difficulty 2/5, 10 minutes.*
#
# How long does a message take? The clocks of two machines do not agree, so only one clock can measure it.
# Rank 0 reads its clock, sends a message, receives an answer of the same size from rank 1, and reads its
# clock again. Half of that time is the time of one message. Other programs disturb single measurements,
# so take the median of `repeats` round trips, one after the other. (If their number is even, take the mean
# of the two in the middle.)
#
# **Predict** before you measure: how long do 8 bytes take from one process to another on the same machine?
# How long do 8 MB take?
#
# <details><summary>Hint 1</summary>
#
# Ranks 0 and 1 do different things in the same function: `if comm.rank == 0:` … `elif comm.rank == 1:` …
# What does rank 2 do?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `np.zeros(size, dtype=np.uint8)` has one byte for each element. Rank 0 reads `time.perf_counter()`, calls
# `Send` and then `Recv`, and reads it again. Rank 1 calls `Recv` and then `Send`. Use `statistics.median`
# for the rest.
# </details>


# %% tags=["exercise", "timed"] exercise="ping_pong"
# %%px
def ping_pong(size: int, repeats: int, comm: MPI.Intracomm) -> float | None:
    """Measure the seconds that a message of `size` bytes takes between ranks 0 and 1.

    Rank 0 sends `size` bytes to rank 1, which sends as many back (with any content), `repeats`
    times. Nothing else is sent. Return half of the median round trip on rank 0, and None on all
    other ranks. Ranks 2, 3, … send nothing. `comm` has 2 ranks or more.
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
# Half of the median is 70 ms: a busy machine may add 40 % of it.
late = [0.3, 0.008, 0.4, 0.09, 0.008, 0.008, 0.3] if rank == 1 else []
unready = [seconds / 2 for seconds in late]  # before rank 1 receives
seconds = ping_pong(1000, 7, check.delayed(comm, ledger, sends=late, receives=unready))
check.show_values(
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    measured=seconds is None if rank else check.is_median(seconds, ledger.calls),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 8 bytes take from less than one microsecond to a few microseconds, if each rank has its own core. 8 MB
# take from a few tenths of a millisecond to several milliseconds, at one to some tens of gigabytes per
# second. The next cell shows the numbers of *this* machine.
# A million times as many bytes take far less than a million times as long.
# </details>
#
# Now measure sizes from 8 bytes to 8 MiB.

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
# Small messages all take about the same time. The time of large messages is proportional to their size. The
# simplest model that describes both is
#
# $$T(S) = \alpha + S\,\beta$$
#
# The *latency* α is in seconds for each message. β is in seconds for each byte and is the inverse of the
# *bandwidth*. Estimate both from measurements.
#
# Each measurement has an error of a few percent *of its value*. A few percent of the time for 8 MiB can be
# more than the whole time for 8 bytes. If a fit minimizes the sum of squared errors in seconds, the large
# messages decide everything, and α can be anything. Minimize the sum of squared *relative* errors instead.
#
# **Predict**: at which size is half of the time latency? Write it with α and β.
#
# <details><summary>Hint 1</summary>
#
# Divide the equation for each measurement by its measured time $T_i$:
# $\alpha \cdot \frac{1}{T_i} + \beta \cdot \frac{S_i}{T_i} = 1$. This is linear in α and β.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Make a matrix `columns` with a column of $1/T_i$ and a column of $S_i/T_i$
# (`np.stack([…, …], axis=1)`). `np.linalg.lstsq(columns, np.ones(n), rcond=None)[0]` returns α and β.
# </details>


# %% tags=["exercise"] exercise="fit_alpha_beta"
# %%px
def fit_alpha_beta(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Return α in seconds and β in seconds per byte, fitted by relative error.

    The model is α + size·β, and `seconds[i]` is the time of a message of `sizes[i]` bytes. A size
    may occur more than once.
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
# Half of the time is latency if $S\beta = \alpha$, at $S = \alpha/\beta$.
# </details>
#
# A model is useful if it predicts what you have not measured. The next cell fits the model, predicts the
# time of a message of 300 kB, and then measures it.

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
    "Small messages cost α, large ones β per byte",
    y="time of one message (s)",
    xaxis=plots.bytes_axis(sizes[0], sizes[-1]),
    yaxis_type="log",
)
figure.add_scatter(x=sizes, y=seconds, mode="markers", **plots.line("reference", "measured"))
modeled = [collectives.message(size).seconds(link) for size in sizes]
figure.add_scatter(x=sizes, y=modeled, mode="lines", **plots.line("model", "α + size·β"))
plots.show(figure)

# %% [markdown]
# Where the points leave the line, the link does something that the model does not include. Small messages
# are copied through a buffer, large messages wait for their receiver, and messages larger than a cache are
# read from memory. For two numbers that cover six orders of magnitude, a factor of two or three is a good
# result.
#
# # Part B: all ranks at once
#
# ## 3. A deadlock
#
# *Difficulty 2/5, 15 minutes.*
#
# The ranks form a ring. Each rank sends an array to its right neighbor and receives one from its left
# neighbor. This cell does it with 1 element:

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
# **Predict**: what happens with a million elements (8 MB)? Write down your answer before you run the next
# cell. It ends with an error after its deadline of 2 seconds. Read *at which line each rank is stuck*.

# %% tags=["raises-exception"]
# %%px --timeout 2
received = send_then_receive(1_000_000)
print("all have received")

# %% [markdown]
# All four ranks wait in `Send`. Draw an arrow from each rank to the rank that it waits for: 0 waits until
# 1 receives, 1 waits for 2, 2 waits for 3, and 3 waits for 0. The arrows form a circle, so no rank can
# ever continue.
#
# Why did one element work? MPI sends a small message *eagerly*: it copies the message into a buffer of the
# receiver, and `Send` returns. A large message waits until its receiver is ready (a *rendezvous*), because
# no rank keeps 8 MB free for unexpected messages. The size at which MPI changes from one to the other
# depends on the machine. A program that needs the buffer is wrong everywhere, but it may fail only on
# the largest machine.
#
# Here is another deadlock, on a line instead of a ring: each rank sends to both neighbors. **Predict** which
# ranks wait for which. This time, they are stuck at different lines.

# %% tags=["raises-exception"]
# %%px --timeout 2
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
# Ranks 0, 1, and 2 wait for their right neighbor to receive, and rank 3 waits for its left one. Follow
# the arrows: 0 → 1 → 2 → 3 → 2. The circle is 2 ⇄ 3: both ranks send, and each waits for the other to
# receive. Ranks 0 and 1 wait behind them. A deadlock contains a circle of arrows. Find it, and reverse one
# of its arrows. Then look for the next circle: if only rank 3 receives first here, ranks 1 and 2 send to
# each other, and the program is still stuck at 1 ⇄ 2.
# </details>
#
# Now write the shift around the ring so that it works for every size of message.
#
# - It works for every number of ranks, including 1.
# - All messages travel *at the same time* or in two turns: even ranks send first, and odd ranks receive
#   first. With an odd number of ranks, there is a third turn. If only rank 0 receives first, the program
#   does not hang, but the messages travel one after the other: first from rank 3 to rank 0, then from rank 2
#   to rank 3, and so on.
# - Build it from messages, here and in the following exercises. A library's collective would do the
#   exercise for you.
# - Send the array's own memory. `send` and `recv`, with small letters, first copy it into a pickled Python
#   object.
#
# The check runs your function on a communicator without any buffers. On it, even a single byte waits for
# its receiver.
#
# <details><summary>Hint 1</summary>
#
# MPI has one call that sends and receives at the same time, in whatever order is possible.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `comm.Sendrecv(x, dest=…, recvbuf=received, source=…)`. Or use `Isend`, which returns a *request*
# immediately, then `Recv`, and then `request.Wait()`. Until `Wait` returns, do not change the array
# that you send.
# </details>


# %% tags=["exercise"] exercise="ring_shift"
# %%px
def ring_shift(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Send `x` to the right neighbor, and return the array that the left neighbor sent.

    The right neighbor of rank r is r + 1, and that of the last rank is rank 0. All ranks pass
    arrays of the same shape and dtype, contiguous in C order. Do not change `x`, or an array that
    an earlier call returned.
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
# This is the message that hung. Now it arrives:

# %%
# %%px --timeout 20
received = ring_shift(np.full(1_000_000, float(rank)), comm)
print(f"{received.size:,} elements between {received.min():.0f} and {received.max():.0f}")

# %% [markdown]
# ## 4. What does a tree save?
#
# *Difficulty 2/5, 5 minutes.*
#
# One rank, the *root*, has data that all ranks need, such as initial weights or a configuration. It could
# send the data to one rank after another. With 1000 ranks, the last rank would wait for 999 messages. But
# after the first message, *two* ranks have the data, so both can send. Then four ranks can send, and then
# eight.
#
# ```text
# round 1    0 → 1
# round 2    0 → 2    1 → 3
# round 3    0 → 4    1 → 5    2 → 6    3 → 7
# ```
#
# In a round, a rank sends at most one message and receives at most one. **Predict in numbers**, before you
# build it, for any number of ranks:
#
# - `rounds_one_by_one`, `rounds_tree`: the number of rounds of the two ways
# - `messages_tree`: the number of messages that all ranks together send in the tree
# - `messages_root`: the number of messages that the root sends in the tree
#
# The check compares your numbers with the book's formulas, for 2 to 64 ranks.
#
# <details><summary>Hint</summary>
#
# `(n - 1).bit_length()` is ⌈log₂ n⌉ without rounding errors. Try your formulas on 5 ranks by hand.
# </details>


# %% tags=["exercise"] exercise="predict_broadcast"
# %%px
def predict_broadcast(world_size: int) -> dict[str, float]:
    """Return `rounds_one_by_one`, `rounds_tree`, `messages_tree`, and `messages_root`."""
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
# The tree reaches 1000 ranks in 10 rounds instead of 999. It needs as many messages as before, 999, one
# for each rank except the root. But the root sends only 10 of them, and other ranks send the rest.
# </details>
#
# ## 5. A broadcast in ⌈log₂ N⌉ rounds
#
# *Difficulty 3/5, 15 minutes.*
#
# Build the broadcast from a tree: in each round, every rank that has the data sends it to one rank that
# does not, until all ranks have it.
#
# <details><summary>Hint 1</summary>
#
# Number the ranks from the root: `relative = (comm.rank - root) % comm.size`. The root is 0. Before each
# round, the relative ranks 0 … `reached` − 1 have the data. Which ranks send to which ranks in this
# round? Which ranks do nothing?
# </details>
#
# <details><summary>Hint 2</summary>
#
# In a round, relative rank r < `reached` sends to r + `reached`, if there is such a rank, and the ranks
# from `reached` to 2·`reached` − 1 receive. The distance between two ranks is the same, whether you count
# from the root or from 0. Then `reached` doubles.
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
late = check.delayed(comm, Ledger(), sends=[0.0, 0.1, 0.0, 0.1] if rank == 0 else [])
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
    on_7_ranks=check.broadcast_rounds(binomial_broadcast, 2, 7) in (None, 3),
)

# %% [markdown]
# A *ledger* watches a communicator and records every call. This is what your broadcast did with rank 1 as
# the root:

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
# In training, every rank has a gradient, and every rank needs the sum of all gradients. This is an
# *all-reduce*. A tree sends all of the data in each of its rounds. A ring is better for large data: it
# cuts the data into N chunks, and in each round, each link transports only one chunk.
#
# `chunk(length, index, parts)` returns the slice of chunk `index`. The lengths of the chunks differ by at
# most one element. The index counts around the ring, so chunk −1 is the last one.

# %%
# %%px --targets 0
print([chunk(10, index, 4) for index in range(4)])
print(chunk(10, -1, 4) == chunk(10, 3, 4) == chunk(10, 7, 4))

# %% [markdown]
# ## 6. Reduce-scatter
#
# *Difficulty 4/5, 20 minutes.*
#
# This is the first half. At its end, rank r holds chunk r of the sum, and it does not need to hold more.
#
# Each chunk travels once around the ring. Each rank on its way adds its own numbers. Rank r must be the last
# one to add to chunk r, so this chunk *starts* at rank r + 1, N − 1 steps earlier. In the first round, rank r
# therefore sends chunk r − 1. In the same round, it receives a partial sum of chunk r − 2. It adds its own
# numbers and sends the result in the next round.
#
# With 4 ranks, each line is a round, and `3:01` is chunk 3 with the numbers of ranks 0 and 1:
#
# ```text
#            rank 0 sends   rank 1 sends   rank 2 sends   rank 3 sends
# round 0    3:0            0:1            1:2            2:3
# round 1    2:30           3:01           0:12           1:23
# round 2    1:230          2:301          3:012          0:123
# ```
#
# **Predict**: how many bytes does a rank send in total if the data has S bytes? How does that change from 4
# ranks to 1000?
#
# <details><summary>Hint 1</summary>
#
# In round `step` (counted from 0), a rank sends chunk `rank − 1 − step` and receives chunk
# `rank − 2 − step`. Receive into a separate array and then add, because the sum needs the numbers in `x`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Use `Sendrecv` to the right and from the left, in N − 1 rounds. `x[chunk(...)]` is a view of `x`, so
# `+=` on it changes `x`. The receive buffer needs the dtype of `x` and the length of the chunk that
# arrives.
# </details>


# %% tags=["exercise"] exercise="ring_reduce_scatter"
# %%px
def ring_reduce_scatter(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Sum `x` over the ranks, and return this rank's chunk of the sum.

    `x` is a contiguous vector of the same length and dtype on every rank, of any length. It is
    also the work space: afterwards, chunk `comm.rank` of it holds the sum, and the other chunks
    can hold anything. Return that chunk, a view of `x`. A rank sends N − 1 messages of one chunk
    each (or none for an empty chunk) to its right neighbor, while all others send theirs.
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
own_chunk = ring_reduce_scatter(x, turned)
check.show_values(
    chunk=own_chunk.tolist(),
    in_x=x[chunk(11, turned.rank, world_size)].tolist(),
    view=np.shares_memory(own_chunk, x),
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, 6),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It sends N − 1 chunks of S/N bytes: (N − 1)/N · S. With 4 ranks, this is three quarters of the data. With
# 1000 ranks, it is 99.9 percent. The number of ranks makes hardly any difference.
# </details>
#
# The next cell shows the ring at work. Rank r starts with $10^r$ everywhere, so the digits of a number show
# which ranks' numbers it contains: 1111 is the complete sum. Before you run it, **predict** how many ones
# each chunk of rank 0 has.

# %%
# %%px --timeout 20
x = np.full(world_size, 10**rank)
ring_reduce_scatter(x, comm)
print("  ".join(f"{number:0{world_size}d}" for number in x))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Chunk 0 of rank 0 has four ones, which is the complete sum. Rank 0 sent chunk 3 first, with only its own
# number, so it has one. It added its own number to chunks 2 and 1 when they passed: they have two and three.
# </details>
#
# ## 7. All-gather
#
# *Difficulty 3/5, 10 minutes.*
#
# This is the second half. Rank r has chunk r, and all ranks need all chunks. Again, each rank passes on to
# its right neighbor what came from its left neighbor. This time, nothing is added.
#
# **Predict**: in the first round, rank r sends the chunk that it has. Which chunk does it send in the last
# round?
#
# <details><summary>Hint 1</summary>
#
# In round `step`, a rank sends the chunk that it received in the round before: `rank − step`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# A chunk can arrive directly in its place: `recvbuf=x[chunk(len(x), rank - step - 1, size)]`.
# </details>


# %% tags=["exercise"] exercise="ring_all_gather"
# %%px
def ring_all_gather(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Fill `x` with the ranks' chunks: chunk r comes from rank r.

    `x` is a contiguous vector of the same length and dtype on every rank, of any length. On entry,
    only its chunk `comm.rank` is valid. A rank sends N − 1 messages of one chunk each (or none for
    an empty chunk) to its right neighbor, while all others send theirs.
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
# In the last round, number N − 2, rank r sends chunk r − (N − 2). Around the ring, this is chunk r + 2: the
# chunk of the rank after its right neighbor, and the last one that this neighbor needs.
# </details>
#
# ## 8. Ring or tree?
#
# *Difficulty 3/5, 5 minutes.*
#
# Compare two ways to all-reduce S bytes. One is a reduce-scatter and an all-gather on a ring. The other is
# a tree that sums everything at rank 0 (the messages of the broadcast in reverse), followed by a
# broadcast from rank 0. **Predict in numbers**, before you build the first one:
#
# - `rounds_ring`, `rounds_tree`: the number of rounds of the two ways. (In a round, a rank sends at most
#   one message and receives at most one.)
# - `share_ring`, `share_tree`: the bytes that *rank 0* sends in total, in multiples of S


# %% tags=["exercise"] exercise="predict_ring"
# %%px
def predict_ring(world_size: int) -> dict[str, float]:
    """Return `rounds_ring`, `share_ring`, `rounds_tree`, and `share_tree`."""
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
# The ring's share stays below 2 for any number of ranks, but its rounds grow with this number. The tree's
# rounds grow only with the logarithm, but each of them sends all of the data. With 64 ranks, the ring needs
# 126 rounds and 1.97 S, and the tree needs 12 rounds and 6 S from rank 0. For small data, the number of
# rounds matters. For large data, the bytes matter.
# </details>
#
# ## 9. All-reduce
#
# *Difficulty 3/5, 10 minutes.*
#
# Combine the two halves. Gradients can be matrices, and an array need not be contiguous: the transpose
# `x.T` is the same memory, read in another order, and `x[::2]` is every second element. Your all-reduce
# takes an array of any shape. Afterwards, the sum must be in *this* array.
#
# <details><summary>Hint 1</summary>
#
# `np.ascontiguousarray(x).reshape(-1)` makes a contiguous vector of any array. If `x` is contiguous in C order,
# the vector is a view of the same memory. Otherwise, for example for a transpose, it is a copy.
# (`x.reshape(-1)` alone may be a view with gaps, which you cannot send.)
# </details>
#
# <details><summary>Hint 2</summary>
#
# `np.shares_memory(x, flat)` shows whether `flat` is a view or a copy. Write a copy back with `x[...] = …`.
# </details>


# %% tags=["exercise"] exercise="ring_all_reduce"
# %%px
def ring_all_reduce(x: np.ndarray, comm: MPI.Intracomm) -> None:
    """Replace `x` on every rank by the sum over the ranks.

    `x` has any shape, the same on every rank with the same dtype, and need not be contiguous. A
    rank sends 2(N−1) messages of one chunk each (or none for an empty chunk) to a neighbor, in
    total about 2(N−1)/N of the data, while all others send theirs.
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
    neighbors=all((to - turned.rank) % world_size in (1, 3) for to, _ in check.sent(ledger)),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, 12),
)

# %% [markdown]
# The ledger counts what an all-reduce of 8 MB sends. The formulas of the book predict these numbers.

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
# # Part D: groups of ranks
#
# ## 10. Rows and columns
#
# *Difficulty 2/5, 10 minutes.*
#
# Large models are trained on a grid of ranks. For example, the ranks of a row share the work of each layer,
# and the ranks of a column sum their gradients. Each row and each column therefore needs its own communicator.
# `comm.Split(color, key)` makes them. All ranks of `comm` call it, and ranks that pass the same `color` get a
# communicator together. In it, they are numbered from 0 in the order of `key`.
#
# The ranks of `comm` are numbered row by row. In a grid of 2 × 3:
#
# ```text
#          column 0   column 1   column 2
# row 0       0          1          2
# row 1       3          4          5
# ```
#
# Make the communicator of this rank's row and the one of its column. In the row, a rank's number is its
# column. In the column, it is its row.
#
# - **A single row or column:** `rows` or `columns` can be 1. Make two new communicators in this case, too.
# - **Other ranks:** `comm` can have any number of ranks, in any order.
# - **Freeing:** the caller frees the two communicators. If you make others, free them before you return.
#
# **Predict**: how many communicators are there for the rows and columns of a 2 × 3 grid? Which numbers does
# rank 5 have in its two?
#
# <details><summary>Hint 1</summary>
#
# Rank r is in row `r // columns` and in column `r % columns`. `divmod` computes both.
# </details>
#
# <details><summary>Hint 2</summary>
#
# The ranks of a row need the same color, so the color is the row. They are in the order of their columns, so
# the key is the column. For the column's communicator, it is the other way round.
# </details>


# %% tags=["exercise"] exercise="grid_communicators"
# %%px
def grid_communicators(
    rows: int, columns: int, comm: MPI.Intracomm
) -> tuple[MPI.Intracomm, MPI.Intracomm]:
    """Return new communicators of this rank's row and of its column, in this order.

    The ranks of `comm` form a grid of `rows` × `columns`, numbered row by row. `comm.size` is
    `rows * columns`. Ranks are numbered by their column in a row, and by their row in a column.
    """
    # BEGIN SOLUTION
    row, column = divmod(comm.rank, columns)
    return comm.Split(row, column), comm.Split(column, row)
    # END SOLUTION


# %% tags=["check"] exercise="grid_communicators" points=2
# %%px --timeout 20
check.grid_communicators(grid_communicators)

# %% tags=["hidden-check"] exercise="grid_communicators" points=1
# %%px --timeout 20
pairs = comm.Split(0, rank ^ 1)  # the lab's ranks 1, 0, 3, 2
grids = [grid_communicators(rows, 4 // rows, pairs) for rows in (1, 2, 4)]
check.show_values(
    rows=[row.allgather(rank) for row, _ in grids],
    columns=[column.allgather(rank) for _, column in grids],
    new=[MPI.Comm.Compare(part, pairs) != MPI.IDENT for grid in grids for part in grid],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# There are five: two for the rows, and three for the columns. Rank 5 is in row 1 and column 2, so its number
# is 2 in its row and 1 in its column.
# </details>
#
# Your all-reduce works on any communicator. In the next cell, it first sums over each row and then over each
# column. As in part C, the digits of a number show which ranks' numbers it contains. **Predict** what each rank
# prints.

# %%
# %%px --timeout 20
rows = 2 if world_size % 2 == 0 else 1
row_comm, column_comm = grid_communicators(rows, world_size // rows, comm)
x = np.array([10**rank])
for name, part in {"row": row_comm, "column": column_comm}.items():
    ring_all_reduce(x, part)
    print(f"sum over the {name}: {x[0]:0{world_size}d}")
    part.Free()

# %% [markdown]
# After the first all-reduce, a rank has the sum of its row. A column has one rank of each row, so the second
# all-reduce gives every rank the sum over all ranks.
#
# # Against the library
#
# These four all-reduces do the same work: your function, MPI's `comm.Allreduce`, and
# `torch.distributed`'s `all_reduce` on two groups. `group` uses MPI. The default group uses Gloo on the CPU
# and NCCL on GPUs. (If ranks share a GPU, they cannot use NCCL, and both groups use MPI.) First, compare their results.

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


all_reduces = {
    "comm.Allreduce": lambda x: comm.Allreduce(MPI.IN_PLACE, x),
    "your ring": lambda x: ring_all_reduce(x, comm),
    "torch, group": lambda x: torch_all_reduce(x, group),
    "torch, default group": torch_all_reduce,
}

# %%
# %%px --timeout 100
sums = {}
for name, all_reduce in all_reduces.items():
    sums[name] = gradient.copy()
    all_reduce(sums[name])
    same = np.allclose(sums[name], sums["comm.Allreduce"], rtol=0, atol=1e-5)
    print(f"{name}: {'the same sum' if same else 'ANOTHER SUM'}")

# %% [markdown]
# Now measure their speed, from 1 KiB to 16 MiB, as *bus bandwidth*. This is the number of bytes that the
# busiest rank has to send even in the best algorithm, 2(N−1)/N · S, divided by the time. If nothing but
# the links limits the speed, this is the bandwidth of each link for any number of ranks, so you can
# compare it with 1/β.
#
# The model needs the α and β of this situation. In the ping-pong, two ranks used the machine alone. On the
# ring, all ranks send at the same time and share the memory and the cores. So the cell fits α and β again, to
# the time of *your* `ring_shift`, which sends in the same way.
#
# **Predict**: which one is fastest for 1 KiB, and which for 16 MiB? Where does the ring lose time if
# messages are small?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
from parlab import timing

sizes = [1024 * 4**k for k in range(8)]  # bytes: 1 KiB to 16 MiB
shifts, measured = [], []
for size in sizes:
    x, rounds = np.zeros(size // 4, dtype=np.float32), 20 if size < 10**6 else 6
    tensor = torch.zeros(size // 4, device=device)
    seconds = timing.median_seconds({"shift": lambda x=x: ring_shift(x, comm)}, comm, rounds)
    shifts.append(seconds["shift"])
    ways = {
        "your ring": lambda x=x: ring_all_reduce(x, comm),
        "comm.Allreduce": lambda x=x: comm.Allreduce(MPI.IN_PLACE, x),
        f"torch over {dist.get_backend(group)}": lambda t=tensor: dist.all_reduce(t, group=group),
        f"torch over {dist.get_backend()}": lambda t=tensor: dist.all_reduce(t),
    }
    measured.append(timing.median_seconds(ways, comm, rounds, warm_up=1))
link = collectives.Link(*fit_alpha_beta(sizes, shifts))


# %% tags=["nbval-ignore-output"]
# %%px --targets 0
def bus_bandwidths(all_seconds):
    pairs = zip(sizes, all_seconds, strict=True)
    return [collectives.bus_bandwidth("all_reduce", *pair, world_size) for pair in pairs]


styles = ["reference", *(plots.series(i, "") for i in (0, 2, 3))]
figure = plots.figure(
    "The ring pays 2(N−1) latencies, and then uses the whole link",
    y="bus bandwidth (bytes/s)",
    xaxis=plots.bytes_axis(sizes[0], sizes[-1], every=2),
    yaxis_type="log",
)
for style, name in zip(styles, measured[0], strict=False):
    y = bus_bandwidths([times[name] for times in measured])
    figure.add_scatter(x=sizes, y=y, **plots.line(style, name))
y = bus_bandwidths([collectives.ring_all_reduce(n, world_size).seconds(link) for n in sizes])
figure.add_scatter(x=sizes, y=y, mode="lines", **plots.line("model", "ring, by the model"))
plots.show(figure)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
print(f"α = {1e6 * link.alpha:.1f} µs, 1/β = {link.bandwidth / 1e9:.2f} GB/s while all ranks send")
for size in (sizes[0], sizes[-1]):
    times = measured[sizes.index(size)]
    ratios = [f"{name} {times[name] / times['your ring']:.2f}" for name in times]
    print(f"{size:,} bytes, time relative to your ring's: " + ", ".join(ratios))

# %% [markdown]
# What to look for:
#
# - **Small data.** An all-reduce of small data pays for its rounds, and its bytes hardly matter. Your
#   ring takes 2(N−1) rounds. For small data, MPI chooses an algorithm with fewer rounds, such as
#   recursive doubling, which takes log₂ N rounds if N is a power of two. With 1024 ranks, that is
#   2046 rounds against 10.
# - **Large data.** The curves rise more slowly and become flat, because the number of bytes now decides the
#   time. They can fall again for the largest data. Your twenty lines of Python come close to the
#   libraries: sending and adding the data takes most of the time, and the interpreter takes little.
# - **mpi4py** is the name of the backend that `group` uses: MPI, called by torch. This backend sends only from
#   the host's memory, so a tensor on a GPU is copied there and back.
# - **Gloo** uses TCP and the operating system's network stack, even between two processes on the same
#   machine. MPI uses shared memory.
# - **The model** does not include additions, caches, or the microseconds that Python takes for the
#   lines of each round. If it is off by a large factor, look for what the ring does and a shift
#   does not.
#
# # Going further
#
# - Start seven ranks with `cluster.start(7)` (this also works on two cores). They are new processes, so run the
#   cells with the imports, your functions, and the checks again. Your functions should work without a change.
# - Write `recursive_doubling_all_reduce`: in round k, every rank exchanges all of its data with rank
#   `rank ^ 2**k` and adds. It takes log₂ N rounds if N is a power of two. At which size does your ring become
#   faster? `collectives.recursive_doubling_all_reduce` computes the model's answer.
# - The ring sends a chunk, waits, adds, and sends again. Cut each chunk into two halves, and send the first
#   half (`Isend`, `Irecv`) while you add the second. Does that help on this machine? When would it help?
# - `comm.Split_type(MPI.COMM_TYPE_SHARED)` returns a communicator of the ranks on the same node. Use it for
#   a hierarchical all-reduce: reduce-scatter inside a node, all-reduce between nodes, all-gather inside a
#   node. The [chapter](../book/01_mpi.md) computes what it costs.
