"""Exercise `average_gradients`."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.base.call_outcome import idle_ranks_left
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.subgroups import subgroups
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.costs.collectives import ring_bytes
from parlab.ledger.ledger import ring_bytes_sent

SECONDS = 10.0  # on a busy machine, the ranks may meet late
SHAPES = {"shared": ((2, 3), (4,)), "own": ((3,), (1, 2), (5,))}

MISTAKES = Mistakes(
    wrong_ranks=(
        "this is summed over the wrong ranks. All ranks have the parameters in `shared`, but only "
        "the ranks of `replicas` have the same ones in `own`"
    ),
    own_divided_by_replicas=(
        "this is divided by the number of replicas. Divide by the number of all ranks: the "
        "backward pass has already added up the tokens of the ranks that share the experts"
    ),
    not_divided="this is the gradient of the sum of the losses. Divide by the number of all ranks",
    none_skipped=(
        "ranks whose `.grad` is None skip an all-reduce, so the others wait forever. Contribute "
        "zeros instead"
    ),
    sends_more=(
        "a rank sends {got:.0f} bytes (on rings), expected {right:.0f}. Reduce each gradient once, "
        "and those of experts over `replicas` only, and send nothing else"
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
            # With only one list, the rank without a gradient has no later calls.
            _case(trial, 1, [key], missing=True)
    return (
        "the gradients of the mean loss, with one reduction of each over the ranks that have the "
        f"parameter, on 1 to {check.world_size} ranks in all layouts"
    )


def _case(trial: Trial, sharing: int, keys: list[str], missing: bool = False) -> None:
    """Check groups of `sharing` consecutive ranks, each of which divides all experts."""
    n, rank = trial.size, trial.rank
    ranks = {"shared": list(range(n)), "own": list(range(rank % sharing, n, sharing))}
    drawn = {key: [experts.random(trial.draw, n, *shape) for shape in SHAPES[key]] for key in keys}
    if missing:
        drawn[keys[-1]][-1][0] = 0
    parameters: dict[str, list[nn.Parameter]] = {"shared": [], "own": []}
    for key, listed in drawn.items():
        for gradients in listed:
            parameters[key].append(nn.Parameter(torch.ones_like(gradients[rank])))
            parameters[key][-1].grad = gradients[rank].clone()
    if missing and rank == 0:
        parameters[keys[-1]][-1].grad = None
    work = [not (missing and r == 0) for r in range(n)]
    with subgroups(trial, {"replicas": ranks["own"]}) as groups:
        trial.run(
            *(parameters["shared"], parameters["own"], trial.group, groups.get("replicas")),
            seconds=SECONDS,
            explain=lambda endings: idle_ranks_left(endings, work, MISTAKES.none_skipped()),
        )

    def averaged(key: str, number: int, gradients: Tensor) -> Finding | None:
        right, got = gradients[ranks[key]].sum(0) / n, parameters[key][number].grad
        if got is None and not right.any():
            return None
        wrong, name = _wrong(key, gradients, ranks["own"]), f"the gradient of {key}[{number}]"
        return explained(got, right, wrong, MISTAKES, name, TOLERANCE, with_name=True)

    def sends_no_more() -> Finding | None:
        sizes = {key: sum(p.nbytes for p in listed) for key, listed in parameters.items()}
        right = sum(ring_bytes("all_reduce", sizes[key], len(ranks[key])) for key in sizes)
        got = ring_bytes_sent(trial.calls[rank])
        return MISTAKES.sends_more(got=got, right=right) if got > 1.05 * right + 1 else None

    trial.require(
        lambda: something_sent(trial),
        *(
            partial(averaged, key, number, gradients)
            for key, listed in drawn.items()
            for number, gradients in enumerate(listed)
        ),
        *(
            partial(
                unchanged, f"a parameter in `{key}`", listed, [torch.ones_like(p) for p in listed]
            )
            for key, listed in parameters.items()
        ),
        sends_no_more,
    )


def _wrong(key: str, gradients: Tensor, same_experts: list[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradients that mistakes compute."""
    replicas = gradients[same_experts]
    over, other = (gradients, replicas) if key == "shared" else (replicas, gradients)
    yield "not_divided", over.sum(0)
    if key == "own":
        yield "own_divided_by_replicas", replicas.mean(0)
    for divisor in (len(gradients), len(replicas)):
        yield "wrong_ranks", other.sum(0) / divisor
