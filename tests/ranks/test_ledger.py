"""The ledger on real ranks."""

from tests.support.on_ranks import cases_test

test_ledger = cases_test("cases_ledger", world_sizes=[4], nightly=[2])
