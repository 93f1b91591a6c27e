"""The order of the tests, and which of them may run side by side.

In one process those that answer soonest come first, whatever file they are in. `make test` runs
files side by side (pytest-xdist), where a file that takes long must start early: there the order is
the other way round. Tests that share what takes long to make, as ranks or a built book, stay in one
process: those of a file or of a folder, or of an `xdist_group` that they name. So do those that
measure seconds and those that keep all cores busy ("clock"), which are then not side by side.
"""

import os

import pytest

pytest_plugins = ["tests.support.timing", "tests.support.untested"]

# Fixtures that take a while, in the order of how long they take.
SLOW_FIXTURES = {
    "notebook": 1,
    "login": 1,
    "slurm": 2,
    "jupyterlab": 2,
    "full_book": 3,
    "chromium": 3,
}
LONG = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two on two cores, since tests wait for deadlines and for each other's ranks; four at most."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 2))


def pytest_itemcollected(item: pytest.Item) -> None:
    # Here, and not where items are put in order: there xdist has read the groups already.
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usual = float(config.getini("timeout"))

    def cost(item: pytest.Item) -> int:
        limit = item.get_closest_marker("timeout")
        if limit and limit.args and limit.args[0] > usual:
            return LONG  # it says so itself
        fixtures = getattr(item, "fixturenames", ())
        return max((SLOW_FIXTURES.get(name, 0) for name in fixtures), default=0)

    if not hasattr(config, "workerinput"):
        items.sort(key=cost)  # stable: within a group the order stays
        return
    costs: dict[str, int] = {}
    for item in items:
        group = _group(item)
        costs[group] = max(costs.get(group, 0), cost(item))
    items.sort(key=lambda item: (-costs[_group(item)], _group(item), cost(item)))


def _group(item: pytest.Item) -> str:
    if named := item.get_closest_marker("xdist_group"):
        return named.args[0]
    if "full_book" in getattr(item, "fixturenames", ()):
        return "book"
    parent = item.path.parent.name
    return parent if parent in ("browser", "grading") else f"{parent}/{item.path.name}"
