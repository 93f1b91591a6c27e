"""Random inputs of checks: drawing the same shapes again, with other values."""

from random import Random

import pytest

from parlab.checks.base.draw import Draw


def shapes(draw: Random) -> list:
    found = [draw.randrange(100), draw.choice("abcdef"), draw.sample(range(50), 5)]
    found += [draw.randint(1, 10**12), draw.randrange(2**70)]
    return found


def values(draw: Random) -> list[float]:
    return [draw.getrandbits(32), draw.getrandbits(3), draw.random(), draw.uniform(1, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_it_draws_the_same_as_python(seed: int) -> None:
    draw, python = Draw(seed), Random(seed)
    assert shapes(draw) + values(draw) == shapes(python) + values(python)


def test_other_values_have_the_same_shapes() -> None:
    draw = Draw(1)
    state = draw.getstate()
    first, drawn = shapes(draw), values(draw)
    after = draw.getstate()
    with draw.other_values(state):
        assert shapes(draw) == first
        again = values(draw)
    assert all(one != other for one, other in zip(drawn, again, strict=True))
    assert 0 <= again[2] < 1 and 1 <= again[3] < 2 and 0 <= again[1] < 8
    assert draw.getstate() == after, "what comes next is as if nothing had been repeated"
