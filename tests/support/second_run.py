"""Runs pytest, and runs a few tests that failed once more, alone.

    python -m tests.support.second_run ARGUMENT…

Tests start ranks, browsers, and sandboxes, and several processes run tests at the same time. A test
that fails with other tests and passes alone has its own fault, which must be fixed. It does not
show that the tested change is wrong. So it is listed as unstable, and the run passes, as with
CPython's `regrtest --rerun`. `make test-all` does not do this, and reports each failure.
"""

import subprocess
import sys
from dataclasses import dataclass, field

import pytest

MOST_UNSTABLE = 3  # more failures than this are not accidents


@dataclass(eq=False)  # pluggy keeps plugins in sets
class Failures:
    """Collects the tests that fail."""

    tests: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        if not test.endswith("]"):  # pytest-xdist has added "@" and the name of a group
            test = test.rpartition("@")[0] or test
        if report.failed and test not in self.tests:
            self.tests.append(test)


def main(arguments: list[str]) -> int:
    """Return pytest's exit status of the first run, or of the second one if there is one."""
    failures = Failures()
    status = pytest.main(arguments, plugins=[failures])
    tests = failures.tests
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(tests) <= MOST_UNSTABLE:
        return int(status)
    print(f"\n== Failed: {len(tests)}. What failed runs once more, alone.")
    again = subprocess.run([sys.executable, "-m", "pytest", "-n0", *tests], check=False).returncode
    if again == 0:
        print("\n== UNSTABLE: passed alone, after a failure that is shown above. Please repair:")
        print("\n".join(f"   {test}" for test in tests))
    return again


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
