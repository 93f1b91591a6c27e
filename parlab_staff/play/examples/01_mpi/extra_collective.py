"""One all-reduce too many.

Rank 0 makes an extra all-reduce, because of an `if` around the wrong line. The library matches the
first call of each rank, then the second, and so on. It cannot know which calls you meant to match.

**Predict** what each rank prints, and which rank waits at the end. Then fix the program.

What happens if the extra call has an array of another length?
"""


def sum_over_ranks(number):
    total = np.array([number])
    comm.Allreduce(MPI.IN_PLACE, total)
    return total[0]


if rank == 0:
    print("extra:", sum_over_ranks(100))
for number in (1, 2, 3):
    print(number, "becomes", sum_over_ranks(number))
