"""What ranks hold after each round of an algorithm, as `communication.ring_rounds` draws it.

`states[k][r][i]` names the ranks whose numbers are in chunk i on rank r after round k.
"""

State = list[list[str]]

_LETTERS = "ABCDEFGH"


def ring_reduce_scatter(n: int) -> list[State]:
    """Return the states of a ring reduce-scatter: chunk r ends complete on rank r."""
    states = [_own(n)]
    for step in range(n - 1):
        state = [list(row) for row in states[-1]]
        for r in range(n):
            i = (r - 2 - step) % n
            state[r][i] = _sum(states[-1][r - 1][i], states[-1][r][i])
        states.append(state)
    return states


def ring_all_gather(n: int) -> list[State]:
    """Return the states of a ring all-gather of complete chunks."""
    states = [[[_LETTERS[:n] if i == r else "" for i in range(n)] for r in range(n)]]
    for step in range(n - 1):
        state = [list(row) for row in states[-1]]
        for r in range(n):
            i = (r - 1 - step) % n
            state[r][i] = states[-1][r - 1][i]
        states.append(state)
    return states


def halving_doubling(n: int) -> list[State]:
    """Return the states of halving and doubling for n ranks, a power of two.

    A place is empty when the rank no longer needs the partial sum in it.
    """
    states = [_own(n)]
    distances = [n >> k for k in range(1, n.bit_length())]
    for distance in distances:
        before = states[-1]
        states.append(
            [
                [
                    _sum(before[r][i], before[r ^ distance][i])
                    if before[r][i] and not (r ^ i) & distance
                    else ""
                    for i in range(n)
                ]
                for r in range(n)
            ]
        )
    for distance in reversed(distances):
        before = states[-1]
        states.append(
            [[before[r][i] or before[r ^ distance][i] for i in range(n)] for r in range(n)]
        )
    return states


def _own(n: int) -> State:
    return [[_LETTERS[r]] * n for r in range(n)]


def _sum(a: str, b: str) -> str:
    return "".join(sorted(a + b))
