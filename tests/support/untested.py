"""Skips tests that need something that this machine does not have, and lists them at the end.

With CI=true, a skipped test fails.
"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from parlab.setup.doctor import examine

_finding = cache(examine)


def need(name: str) -> None:
    """Skip the test if `parlab doctor` does not report `name`, such as "chromium", as ok."""
    finding = _finding(name)
    if finding.status != "ok":
        pytest.skip(f"{name}: {finding.found}. {finding.meaning}")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            need(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and in_ci():
        report.outcome = "failed"
        report.longrepr = f"CI=true, and this was not tested: {_reason(report)}"
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the number of skipped tests by reason, as the last lines of a run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    left_out = Counter(map(_reason, reporter.stats.get("skipped", []))) if reporter else {}
    if left_out:
        reporter.section("not tested on this machine", yellow=True)
    for reason, count in left_out.items():
        reporter.line(f"{count} test{'s' * (count > 1)} left out. {reason}", yellow=True)


def _reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
