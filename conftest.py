"""The order of the tests, and which of them may run at the same time.

In one process, the fastest tests of all files come first. `make test` runs several files at the
same time (pytest-xdist). Slow files must then start early, so the order is reversed. Tests that
share a slow fixture, such as ranks or a built book, run in one process. They are the tests of a
file, of a folder, or of the `xdist_group` that they name. Tests that measure time or keep all cores
busy are in the group "clock", so that they do not run at the same time.
"""

import gc
import os

import pytest

pytest_plugins = ["tests.support.timing", "tests.support.untested"]

# Slow fixtures. A fixture with a larger number takes longer.
SLOW_FIXTURES = {
    "notebook": 1,
    "login": 1,
    "slurm": 2,
    "jupyterlab": 2,
    "full_book": 3,
    "chromium": 3,
}
LONG = 4
BOOKS = {"full_book", "student_book"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use three processes on two cores, because tests often wait, and at most four."""
    return max(3, min(4, len(os.sched_getaffinity(0)) // 2))


def pytest_itemcollected(item: pytest.Item) -> None:
    builds = BOOKS & set(getattr(item, "fixturenames", ()))
    if builds and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(900))  # the first of these tests builds the book
    # pytest_collection_modifyitems would be too late, because xdist reads the groups before it.
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usual = float(config.getini("timeout"))

    def cost(item: pytest.Item) -> int:
        limit = item.get_closest_marker("timeout")
        if limit and limit.args and limit.args[0] > usual:
            return LONG  # because its timeout mark is longer than usual
        fixtures = getattr(item, "fixturenames", ())
        return max((SLOW_FIXTURES.get(name, 0) for name in fixtures), default=0)

    if not hasattr(config, "workerinput"):
        items.sort(key=cost)  # a stable sort, which keeps the order within a group
        return
    costs: dict[str, int] = {}
    for item in items:
        group = _group(item)
        costs[group] = max(costs.get(group, 0), cost(item))
    items.sort(key=lambda item: (-costs[_group(item)], _group(item), cost(item)))


def pytest_collection_finish() -> None:
    """Collect garbage less often, and skip what stays: a tenth of the unit tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _group(item: pytest.Item) -> str:
    if named := item.get_closest_marker("xdist_group"):
        return named.args[0]
    if "full_book" in getattr(item, "fixturenames", ()):
        return "book"
    parent = item.path.parent.name
    return parent if parent in ("browser", "grading") else f"{parent}/{item.path.name}"
