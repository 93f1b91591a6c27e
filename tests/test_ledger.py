"""The ledger on real ranks."""

from tests.ranks import cases_test

test_ledger = cases_test("cases_ledger", world_sizes=[2, 4])
