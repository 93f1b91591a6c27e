"""Prints the slowest groups of tests and the slowest cases at the end of a run.

A test that runs many cases reports each with `record_cases`, so that slow cases are visible.
CPU time includes pytest's process and the ended processes that it started. Unlike elapsed seconds,
it hardly depends on the machine's other work.
"""

import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pytest

GROUPS, CASES = 30, 40
CPU, CASE, FOR_OTHERS = "cpu seconds", "case", "seconds for other tests"
_began = pytest.StashKey[float]()

Record = Callable[[str, object], None]


def record_cases(record_property: Record, seconds: Mapping[str, float]) -> None:
    """Report the seconds of each case of this test. `record_property` is pytest's fixture."""
    for name, value in seconds.items():
        record_property(CASE, [name, round(value, 3)])


def record_for_others(record_property: Record, seconds: float) -> None:
    """Report how long this test worked for other tests; negative if they worked for this one."""
    record_property(FOR_OTHERS, round(seconds, 3))


@dataclass
class Group:
    """The times of the tests of a file, or of a folder of fast tests."""

    tests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


@dataclass(eq=False)  # pluggy keeps plugins in sets
class Timing:
    """Sums the reports of a run."""

    groups: dict[str, Group] = field(default_factory=lambda: defaultdict(Group))
    tests: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cases: dict[str, float] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name_of_test = report.nodeid.partition("@")[0]  # pytest-xdist adds the name of its group
        group = self.groups[group_of(name_of_test)]
        group.seconds += report.duration
        self.tests[name_of_test] += report.duration
        if report.when != "teardown":
            return
        group.tests += 1
        for name, value in report.user_properties:
            if name == CPU:
                group.cpu += value
            elif name == CASE:
                self.cases[f"{name_of_test} {value[0]}"] = value[1]
                self.tests[name_of_test] -= value[1]
            elif name == FOR_OTHERS:
                self.tests[name_of_test] -= value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.tests) + len(self.cases) < CASES:
            return  # a few tests need no table
        terminalreporter.section("where the time went")
        for line in self.lines():
            terminalreporter.line(line)

    def lines(self) -> Iterator[str]:
        yield f"{'seconds':>9} {'processor':>9} {'tests':>6}"
        total = Group()
        for group in self.groups.values():
            total.tests += group.tests
            total.seconds += group.seconds
            total.cpu += group.cpu
        slowest = sorted(self.groups.items(), key=lambda one: -one[1].seconds)
        for name, group in [("all tests", total), *slowest[:GROUPS]]:
            yield f"{group.seconds:9.1f} {group.cpu:9.1f} {group.tests:6} {name}"
        yield ""
        every = self.tests | self.cases
        for name in sorted(every, key=lambda name: -every[name])[:CASES]:
            yield f"{every[name]:9.1f} {name}"


def group_of(nodeid: str) -> str:
    """Return the test's file, or its folder for unit tests."""
    path = PurePosixPath(nodeid.partition("::")[0])
    return str(path.parent if path.parent.name == "unit" else path)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_began] = _cpu()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((CPU, _cpu() - item.stash[_began]))
    return report


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Timing(), "timing")
