"""The order of the tests: those that answer soonest come first, whatever file they are in."""

import pytest

# Fixtures that take a while, in the order of how long they take.
SLOW_FIXTURES = {"notebook": 1, "books": 2, "chromium": 3}
LONG = 4


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usual = float(config.getini("timeout"))

    def cost(item: pytest.Item) -> int:
        limit = item.get_closest_marker("timeout")
        if limit and limit.args and limit.args[0] > usual:
            return LONG  # it says so itself
        fixtures = getattr(item, "fixturenames", ())
        return max((SLOW_FIXTURES.get(name, 0) for name in fixtures), default=0)

    items.sort(key=cost)  # stable: within a group the order stays
