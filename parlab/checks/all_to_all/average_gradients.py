"""Exercise `average_gradients`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from mpi4py import MPI
from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.base.call_outcome import idle_ranks_left
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.costs.collectives import ring_bytes
from parlab.ledger.ledger import ring_bytes_sent

SECONDS = 10.0  # a busy machine takes long to bring ranks together
SHAPES = {"shared": ((2, 3), (4,)), "own": ((3,), (1, 2), (5,))}

MISTAKES = Mistakes(
    own_over_all_ranks=(
        "this is summed over all ranks, but most of them have other experts. Sum over the ranks "
        "of `replicas`, which have the same expert"
    ),
    own_divided_by_replicas=(
        "this is divided by the number of replicas. Divide by the number of all ranks: the "
        "backward pass has already added up the tokens of the ranks that share the experts"
    ),
    not_divided="this is the gradient of the sum of the losses. Divide by the number of all ranks",
    not_summed="this is this rank's gradient alone. Sum over the ranks that have the parameter",
    shared_over_replicas=(
        "this is summed over the replicas of the experts only. All ranks have this parameter, so "
        "sum over `all_ranks`"
    ),
    none_skipped=(
        "ranks whose `.grad` is None skip an all-reduce, so the others wait forever. Contribute "
        "zeros instead"
    ),
    none_left=(
        "`.grad` of {name} is None. Other ranks have a gradient for it, so write the mean into "
        "`.grad` on every rank"
    ),
    sends_more=(
        "a rank sends {got:.0f} bytes (on rings), expected {right:.0f}. Reduce each gradient once, "
        "and those of experts over `replicas` only"
    ),
)


@check_of(MISTAKES)
def average_gradients(check: Check) -> str:
    """Check all layouts of the ranks, and gradients that are None on a rank."""
    for trial in check.trials():
        n = trial.size
        layouts = {f"{n // sharing} × {sharing}": sharing for sharing in range(1, n + 1)}
        for _, sharing in trial.cases({k: v for k, v in layouts.items() if n % v == 0}):
            _case(trial, sharing, list(SHAPES))
        for _, key in trial.cases(
            {f"a gradient of `{key}` is None on rank 0": key for key in SHAPES}
        ):
            # With one list only, the rank without a gradient has nothing to do after it.
            _case(trial, 1, [key], missing=True)
    return (
        "the gradients of the mean loss, with one reduction of each over the ranks that have the "
        f"parameter, on 1 to {check.world_size} ranks in all layouts"
    )


def _case(trial: Trial, sharing: int, keys: list[str], missing: bool = False) -> None:
    """Check on ranks of which `sharing` in a row have different experts of one set."""
    n, rank = trial.size, trial.rank
    drawn = {k: [experts.random(trial.draw, n, *s) for s in SHAPES[k]] for k in keys}
    parameters: dict[str, list[nn.Parameter]] = {key: [] for key in SHAPES}
    for key, listed in drawn.items():
        if missing:
            listed[-1][0] = 0
        for gradients in listed:
            p = nn.Parameter(torch.ones_like(gradients[rank]))
            is_none = missing and rank == 0 and gradients is listed[-1]
            p.grad = None if is_none else gradients[rank].clone()
            parameters[key].append(p)
    same_experts = list(range(rank % sharing, n, sharing))
    work = [not (missing and r == 0) for r in range(n)]
    with _group_of(trial, same_experts) as replicas:
        trial.run(
            *(parameters["shared"], parameters["own"], trial.group, replicas),
            seconds=SECONDS,
            explain=lambda endings: idle_ranks_left(endings, work, MISTAKES.none_skipped()),
        )
    ranks = {"shared": list(range(n)), "own": same_experts}

    def values() -> Finding | None:
        for key, listed in drawn.items():
            for number, gradients in enumerate(listed):
                name, grad = f"the gradient of {key}[{number}]", parameters[key][number].grad
                right = {name: gradients[ranks[key]].sum(0) / n}
                if grad is None and right[name].any():
                    return MISTAKES.none_left(name=f"{key}[{number}]")
                wrong = [(name, *one) for one in _wrong(key, gradients, rank, same_experts)]
                if found := experts.values_are({name: grad}, right, wrong, MISTAKES):
                    return found
        return None

    def kept() -> Finding | None:
        changed = [key for key, listed in parameters.items() if any((p != 1).any() for p in listed)]
        return COMMON.argument_changed(name=f"a parameter in `{changed[0]}`") if changed else None

    trial.require(
        lambda: something_sent(trial),
        values,
        kept,
        lambda: _sends_no_more(trial, parameters, ranks),
    )


def _wrong(
    key: str, gradients: Tensor, rank: int, same_experts: list[int]
) -> Iterator[tuple[str, Tensor]]:
    """Yield what mistakes compute."""
    n, replicas = len(gradients), gradients[same_experts]
    over = {"shared": gradients, "own": replicas}[key]
    yield "not_divided", over.sum(0)
    if key == "own":
        yield "own_divided_by_replicas", replicas.mean(0)
        yield "own_over_all_ranks", gradients.mean(0)
        yield "own_over_all_ranks", gradients.sum(0) / len(replicas)
    else:
        yield "shared_over_replicas", replicas.mean(0)
        yield "shared_over_replicas", replicas.sum(0) / n
    for divisor in (1, n, len(replicas)):
        yield "not_summed", gradients[rank] / divisor


def _sends_no_more(
    trial: Trial, parameters: Mapping[str, list[nn.Parameter]], ranks: Mapping[str, list[int]]
) -> Finding | None:
    right = sum(
        ring_bytes("all_reduce", sum(p.nbytes for p in listed), len(ranks[key]))
        for key, listed in parameters.items()
    )
    got = ring_bytes_sent(trial.calls[trial.rank])
    return MISTAKES.sends_more(got=got, right=right) if got > 1.05 * right + 1 else None


@contextmanager
def _group_of(trial: Trial, ranks: list[int]) -> Iterator[RecordingGroup | None]:
    """Provide a group over some ranks of the trial. If the trial revokes its own, so does it."""
    if not trial.takes_part:
        yield None
        return
    # The communicator itself, without the ledger: the group records its calls.
    comm = MPI.Intracomm(trial.comm).Split(ranks[0], trial.rank)
    revoke = trial.comm.Revoke

    def revoke_both() -> None:
        comm.Revoke()
        revoke()

    trial.comm.Revoke = revoke_both
    group = RecordingGroup(comm, [trial.ranks[rank] for rank in ranks], trial.ledger)
    try:
        yield group
    finally:
        group.close()
        del trial.comm.Revoke
    comm.Free()
