"""The ledger, timelines, and stages of a pipeline, on ranks that import torch only once."""

from tests.support.on_ranks import cases_test

ON_ANY_NUMBER = ("cases_timeline", "cases_pipeline")

test_on_one_rank = cases_test(*ON_ANY_NUMBER, world_sizes=[1])
test_on_ranks = cases_test(
    "cases_ledger_messages",
    "cases_ledger_requests",
    "cases_ledger_collectives",
    "cases_ledger_communicators",
    "cases_ledger_torch",
    *ON_ANY_NUMBER,
    world_sizes=[3],
    nightly=[2, 4],
)
