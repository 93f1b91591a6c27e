"""Groups over some ranks of a trial, such as those of a mesh."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from mpi4py import MPI

from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.trial import Trial


@contextmanager
def subgroups(
    trial: Trial, members: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, RecordingGroup]]:
    """Provide groups by name, whose calls the trial records. Collective over the trial's ranks.

    If the trial revokes its own communicator, it revokes theirs too.

    Args:
        members: for each name, the ranks of this rank's group, or no ranks if it is in no such
            group. The names must be the same on all ranks.
    """
    if not trial.takes_part:
        yield {}
        return
    # Use the communicator without the ledger, because the groups record their calls.
    plain = MPI.Intracomm(trial.comm)
    comms = {
        name: plain.Split(min(ranks) if ranks else MPI.UNDEFINED, trial.rank)
        for name, ranks in members.items()
    }
    comms = {name: comm for name, comm in comms.items() if comm != MPI.COMM_NULL}
    trial.comm.revoked_together.extend(comms.values())
    with ExitStack() as stack:
        groups = {}
        for name, comm in comms.items():
            lab_ranks = [trial.ranks[rank] for rank in members[name]]
            groups[name] = RecordingGroup(comm, lab_ranks, trial.ledger)
            stack.callback(groups[name].close)
        try:
            yield groups
        finally:
            trial.comm.revoked_together.clear()
    for comm in comms.values():
        comm.Free()
