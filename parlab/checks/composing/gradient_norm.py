"""Exercise `gradient_norm`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.call_outcome import idle_ranks_left
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

TOLERANCE = 1e-5

MISTAKES = Mistakes(
    copies_unused=(
        "each copy of a gradient counts in full. With c copies, each rank must add only 1/c of the "
        "squares"
    ),
    norms_divided="the norms are divided by the number of copies, c. Divide the squares by c",
    norms_added="this is the sum of the ranks' norms. Add up the squares, and then take the root",
    averaged="the squares are averaged over the ranks. Add them up",
    idle_left=(
        "ranks without gradients do not take part in the all-reduce, and the others wait for them"
    ),
    sends_more=("a rank makes the calls {calls}, expected a single all-reduce of one number"),
)
REFUSED = {  # copies of two gradients
    "one number for two gradients": [1],
    "three numbers for two gradients": [1, 1, 1],
    "copies of [1, 0]": [1, 0],
    "copies of [−1, 2]": [-1, 2],
}


@dataclass(frozen=True)
class Part:
    """A gradient of the model. Ranks with a part of the same name have the same numbers."""

    name: str
    shape: tuple[int, ...]
    copies: int
    dtype: torch.dtype = torch.float32
    size: float = 1.0  # of its numbers
    transposed: bool = False


Parts = list[list[Part]]  # of each rank


def _on_mesh(dp: int, pp: int, tp: int, dtype: torch.dtype = torch.float32) -> Parts:
    """Return each rank's parts. Stages have different numbers of norms. Embeddings are tied."""
    parts: Parts = []
    for rank in range(dp * pp * tp):
        _, stage, shard = rank // (pp * tp), rank // tp % pp, rank % tp
        of_stage = [Part(f"norm {stage} {i}", (5,), dp * tp, dtype) for i in range(stage + 1)]
        of_stage.append(Part(f"column {stage} {shard}", (3, 4), dp, dtype))
        of_stage.append(Part(f"shard {rank}", (7,), 1, dtype))
        if stage in (0, pp - 1):
            of_stage.insert(0, Part("embedding", (6, 2), dp * tp * min(pp, 2), dtype))
        parts.append(of_stage)
    return parts


def _meshes(n: int) -> Iterator[tuple[str, Parts]]:
    for dp, pp in ((d, p) for d in range(1, n + 1) for p in range(1, n + 1)):
        if n % (dp * pp) == 0:
            tp = n // dp // pp
            yield f"dp {dp} × pp {pp} × tp {tp}", _on_mesh(dp, pp, tp)


def _other_cases(n: int) -> Iterator[tuple[str, Parts]]:
    ranks, half, brain = range(n), torch.float16, torch.bfloat16
    yield "bfloat16, to be squared and added in float32", _on_mesh(1, n, 1, brain)
    yield "float16, whose squares overflow", [[Part(f"{r}", (9,), 1, half, 700.0)] for r in ranks]
    yield "float16, whose squares vanish", [[Part(f"{r}", (9,), 1, half, 1e-4)] for r in ranks]
    mixed = [Part("a", (3, 2), n, half), Part("b", (4,), n, brain), Part("c", (2, 5), n)]
    yield "three dtypes", [[*mixed, Part(f"{r}", (3,), 1)] for r in ranks]
    yield (
        "a transposed gradient, and one number",
        [[Part(f"t{r}", (4, 6), 1, transposed=True), Part("one", (), n)] for r in ranks],
    )
    yield "no gradients on rank 0", [[Part(f"{r}", (5,), 1)] if r else [] for r in ranks]
    yield "gradients only on rank 0", [[] if r else [Part("0", (5,), 1)] for r in ranks]
    yield (
        "gradients without elements",
        [[Part("e", (0, 3), n), Part(f"{r}", (2,), 1)] for r in ranks],
    )
    yield "no gradients on any rank", [[] for _ in ranks]


@check_of(MISTAKES)
def gradient_norm(check: Check) -> str:
    """Check the norm on all meshes of the ranks, in three dtypes, and ranks without gradients."""
    for number, trial in enumerate(check.trials()):
        cases = dict(_meshes(trial.size))
        if number == 0 or trial.size == 1:  # more trials of these would take long on eight ranks
            cases |= dict(_other_cases(trial.size))
        for _, parts in trial.cases(cases):
            _case(trial, parts)
    with check.trial() as trial:
        gradients = [torch.ones(3), torch.ones(2)]
        wrong = {what: (gradients, copies, trial.group) for what, copies in REFUSED.items()}
        require_refusals(trial, wrong, "copies")
    return (
        "the norm of one process, with one all-reduce of one number, on all meshes of 1 to "
        f"{check.world_size} ranks"
    )


def _case(trial: Trial, parts: Parts) -> None:
    values = _values(trial, parts)
    own_parts = parts[trial.rank] if trial.takes_part else []
    given = [_given(values[part.name], part) for part in own_parts]
    got = trial.run(
        given,
        [part.copies for part in own_parts],
        trial.group,
        explain=lambda endings: idle_ranks_left(endings, parts, MISTAKES.idle_left()),
    )
    right = sum(map(_squares, values.values()), torch.zeros(())).sqrt()
    tolerance = TOLERANCE if right else 0.0
    numbers = trial.gather(got.item() if isinstance(got, Tensor) and got.numel() == 1 else None)
    trial.require(
        lambda: unchanged("`gradients`", given, [values[part.name] for part in own_parts]),
        lambda: something_sent(trial),
        lambda: explained(got, right, _wrong(parts, values, right), MISTAKES, tolerance=tolerance),
        lambda: _one_number(trial),
        lambda: _same_bits(numbers),
    )


def _wrong(parts: Parts, values: dict[str, Tensor], right: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the norms that mistakes compute."""
    squares = [[_squares(values[part.name]) for part in of_rank] for of_rank in parts]
    yield "copies_unused", torch.tensor([s for of_rank in squares for s in of_rank]).sum().sqrt()

    def sums(power: int) -> Tensor:
        pairs = (zip(*pair, strict=True) for pair in zip(squares, parts, strict=True))
        return torch.tensor([sum(s / part.copies**power for s, part in one) for one in pairs])

    own = sums(1)
    yield "norms_divided", sums(2).sum().sqrt()
    yield "norms_added", own.sqrt().sum()
    yield "averaged", right / len(parts) ** 0.5


def _squares(value: Tensor) -> Tensor:
    return value.float().square().sum()


def _values(trial: Trial, parts: Parts) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    for part in (part for of_rank in parts for part in of_rank):
        if part.name not in values:
            drawn = torch.rand(part.shape, generator=generator) + 0.5
            values[part.name] = (part.size * drawn).to(part.dtype)
    return values


def _given(value: Tensor, part: Part) -> Tensor:
    return value.T.contiguous().T if part.transposed else value.clone()


def _one_number(trial: Trial) -> Finding | None:
    for calls in trial.calls:
        made = [(call.op, call.bytes_sent) for call in calls]
        if trial.size == 1 and not made:
            continue
        if len(made) != 1 or made[0][0] != "all_reduce" or made[0][1] > 8:
            shown = ", ".join(f"{op} ({sent} bytes)" for op, sent in made[:4]) or "none"
            return MISTAKES.sends_more(calls=shown + " …" * (len(made) > 4))
    return None


def _same_bits(numbers: Sequence[Any]) -> Finding | None:
    if len(set(numbers)) == 1:
        return None
    return observed(f"ranks get {' and '.join(map(repr, sorted(set(numbers))))}, expected one norm")
