"""A session replaces lost ranks, but not a batch job that is over (test_slurm has a real one)."""

import pytest

from parlab.cluster import session
from parlab.cluster.errors import ClusterError


class Ranks:
    """Ranks without processes, which count how often a session starts some."""

    started = 0
    job = ""

    def __init__(self, *arguments: object) -> None:
        Ranks.started += 1

    def lost_job(self) -> str:
        return self.job

    def end(self) -> None:
        pass


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> type[Ranks]:
    monkeypatch.setattr(session, "RankSet", Ranks)
    monkeypatch.setattr(Ranks, "started", 0)
    return Ranks


def test_lost_ranks_are_replaced(ranks: type[Ranks]) -> None:
    lost = session.Session(4, None)
    assert "submits a new job" not in lost.replace_lost()
    assert ranks.started == 2
    assert lost.ranks


def test_a_job_that_was_canceled_is_not_submitted_again(
    ranks: type[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "job", "Slurm job 7: CANCELLED")
    lost = session.Session(4, "slurm")
    text = lost.replace_lost()
    assert text.startswith("Slurm job 7: CANCELLED\n") and "submits a new job" in text
    assert ranks.started == 1
    with pytest.raises(ClusterError, match=r"Run cluster.start\(\) to start new ones"):
        lost.send("1", [0])
