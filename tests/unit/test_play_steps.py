"""The playground's picture under Node: what happened at each moment of a run."""

from tests.ranks.test_play_hub import node


def test_steps_of_a_run() -> None:
    assert "# fail 0" in node("--test", "--test-reporter=tap", "tests/unit/play_steps.test.mjs")
