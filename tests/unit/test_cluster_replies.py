"""What the notebook takes from the ranks' answers to a cell."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from parlab.cluster.replies import Replies

NOISE = (
    "NBC_Progress: an error 77 was found during schedule 0x55d0c8a3b2c0 at row-offset 61 - "
    "aborting the schedule\n\n"
)
OTHER = NOISE.replace("error 77", "error 15")


def stderr_of(printed: str) -> str:
    """Return the `stderr` of a rank that printed this."""
    answer: Future[None] = Future()
    answer.set_result(None)
    answer.output = SimpleNamespace(metadata={"stdout": "", "stderr": printed, "outputs": []})
    return Replies([0], SimpleNamespace(_children=[answer]), None).outputs()[0]["stderr"]


# What a rank printed, and what the notebook shows of it.
PRINTED = {
    "a message": (NOISE, ""),
    "two messages": (NOISE + NOISE, ""),
    "empty lines of the learner": (f"\nmine\n\n{NOISE}\nalso mine\n", "\nmine\n\n\nalso mine\n"),
    "a line without its end": (f"no end of line: {NOISE}", "no end of line: "),
    "another error": (OTHER, OTHER),
    "a similar line": ("NBC_Progress: an error 77\n", "NBC_Progress: an error 77\n"),
}


@pytest.mark.parametrize(("printed", "shown"), PRINTED.values(), ids=PRINTED)
def test_messages_about_revoked_collectives_are_not_shown(printed: str, shown: str) -> None:
    assert stderr_of(printed) == shown


def test_the_output_of_a_rank_that_died_after_its_answer_is_not_awaited() -> None:
    answer: Future[None] = Future()
    answer.set_result(None)
    answer.output = Future()
    channel = SimpleNamespace(deaths=dict)
    replies = Replies([0], SimpleNamespace(_children=[answer]), channel)
    assert not replies.has_all_output()
    channel.deaths = lambda: {0: -15}
    assert replies.has_all_output()
