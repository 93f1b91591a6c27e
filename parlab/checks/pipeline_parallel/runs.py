"""A model cut into stages, run by a learner's function: what was seen, and what is right."""

import copy
import functools
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.compare import equal, same
from parlab.checks.endings import ending
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.pipeline import Action, Schedule, backward, forward, sizes, text, texts
from parlab.pipeline.stages import Share, share_of

# A busy machine takes long to bring ranks together: a step of a check needs milliseconds.
SECONDS = 20.0
# Names of a loop may hold on to what it did last.
LOOSE_ENDS = 2

MISTAKES = Mistakes(
    loss_not_divided=(
        "{name} is the sum over the micro-batches of their mean losses' {what}: each counts by its "
        "share of the batch's samples, or the step is {times} times too long"
    ),
    remainder_unweighted=(
        "{name} is the mean over micro-batches of {counts} samples, all counted alike: the mean "
        "over the samples counts each by how many it has"
    ),
    remainder_dropped=(
        "{name} lacks samples: m = {pieces} does not divide {samples}, and those that are left "
        "over are in no micro-batch. Pieces of {counts} samples have them all"
    ),
    not_accumulated=(
        "{name} is that of the last micro-batch alone: the gradients of all of them add up in "
        "`.grad`"
    ),
    weights_updated=(
        "{name} has changed in the step: weights stay as they are until all micro-batches are "
        "through, and the optimizer is the caller's. A later micro-batch would see other weights "
        "than an earlier one"
    ),
    no_boundary_gradient=(
        "{name} is None on rank {rank}: its stage got no gradient. The gradient of the activation "
        "that came in has to go back to where it came from"
    ),
    gradients_not_sent=(
        "the last rank is done, and all others wait for gradients: after its backward pass a rank "
        "sends `x.grad`, of the activation that came in, back to where that came from"
    ),
    wrong_start=(
        "{name} is what the stage gives where its output's gradient is all ones: the backward pass "
        "is to go on from the gradient that the next stage sends"
    ),
    never_freed=(
        "rank {rank} still holds {got} micro-batches of its stages where the schedule leaves "
        "{right}: after its backward pass nothing needs a micro-batch's input and output. Take "
        "them out of where you keep them (`pop`)"
    ),
    graph_kept=(
        "autograd holds the activations of {got} micro-batches on rank {rank} where the schedule "
        "leaves {right}: a backward pass frees them, unless `retain_graph` keeps them"
    ),
    recomputed=(
        "stage {stage} computes the forward pass of micro-batch {i} {times} times: keep its output "
        "for the backward pass. Dropout would draw again, and BatchNorm count the samples twice"
    ),
    other_order=(
        "rank {rank} does {got} where its schedule says {right}: the actions in the list's order, "
        "whatever they are"
    ),
    loss_everywhere=(
        "rank {rank} returns {got}: the rank of the last stage has the loss, all others return None"
    ),
    sent_more=(
        "rank {rank} sends {got} where {right} are to be sent: each activation and each gradient "
        "once, to the rank that needs it"
    ),
)


def texts_of(*keys: str) -> dict[str, str]:
    """Of these mistakes, for the check of an exercise in which they can be made."""
    return {key: MISTAKES.texts[key] for key in keys}


def mean_square(scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of all checks: the mean over samples and outputs."""
    return (scores - targets).square().mean()


class Layer(nn.Module):
    """A linear layer and tanh; `Linear` alone would hide an input that is not kept."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


@dataclass
class Case:
    """A model, a batch and a schedule; what is right, and what mistakes give."""

    trial: Trial
    schedule: Schedule
    samples: int
    layers: list[nn.Module] = field(init=False)
    inputs: Tensor = field(init=False)
    targets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        draw = self.trial.draw
        self.ranks, self.chunks, self.pieces = sizes(self.schedule)
        self.count = self.ranks * self.chunks
        widths = self.widths = [draw.randrange(2, 6) for _ in range(self.count + 1)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(32))
            self.layers = [Layer(a, b).double() for a, b in itertools.pairwise(widths)]
            self.inputs = torch.randn(self.samples, widths[0], dtype=torch.float64)
            self.targets = torch.randn(self.samples, widths[-1], dtype=torch.float64)

    def share(self) -> Share:
        stages = [nn.Sequential(layer) for layer in copy.deepcopy(self.layers)]
        return share_of(stages, self.inputs[:1], self.trial.rank, self.ranks)

    def stage_inputs(self) -> list[list[Tensor]]:
        """The input of each stage, of each micro-batch."""
        found = [list(self.inputs.tensor_split(self.pieces))]
        with torch.no_grad():
            for layer in self.layers[:-1]:
                found.append([layer(x) for x in found[-1]])
        return found

    def gradients(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Of this rank's parameters, of the mean loss of some samples."""
        model = nn.Sequential(*copy.deepcopy(self.layers))
        mean_square(model(inputs), targets).backward()
        return self.mine(model)

    def mine(self, model: nn.Sequential) -> list[Tensor]:
        own = range(max(self.trial.rank, 0), self.count, self.ranks)
        return [p.grad for stage in own for p in model[stage].parameters()]

    def loss(self) -> float:
        with torch.no_grad():
            return mean_square(nn.Sequential(*self.layers)(self.inputs), self.targets).item()

    def counts(self) -> list[int]:
        return [len(x) for x in self.inputs.tensor_split(self.pieces)]


class Notes:
    """What the stages of a rank saw."""

    def __init__(self, case: Case) -> None:
        self._inputs = case.stage_inputs()
        self.did: list[Action] = []
        self.saved = self.held = self.inputs = 0
        self.most_saved: list[int] = []  # at each forward pass, with its own
        self.most_held: list[int] = []
        self.most_inputs: list[int] = []  # of those that came from another rank

    def came(self, stage: int, x: Tensor, alone: bool) -> None:
        if stage > 0 and not alone:
            self.inputs += 1
            weakref.finalize(x.untyped_storage(), self.freed, "inputs").atexit = False

    def which(self, stage: int, x: Tensor) -> int:
        """The micro-batch that came to a stage; −1 for none that is known."""
        known = enumerate(self._inputs[stage])
        return next((i for i, one in known if same(x, one, TOLERANCE)), -1)

    def freed(self, name: str) -> None:
        setattr(self, name, getattr(self, name) - 1)


class Noted(nn.Module):
    """A stage that writes down its passes, and how many micro-batches are held as it starts one."""

    def __init__(self, stage: nn.Module, number: int, notes: Notes, alone: bool) -> None:
        super().__init__()
        self.stage, self.number, self.notes, self.alone = stage, number, notes, alone

    def forward(self, x: Tensor) -> Tensor:
        i = self.notes.which(self.number, x)
        self.notes.did.append(forward(self.number, i))
        self.notes.came(self.number, x, self.alone)
        y = _Note.apply(self.stage(x), self.number, i, self.notes)
        self.notes.most_saved.append(self.notes.saved)
        self.notes.most_held.append(self.notes.held)
        self.notes.most_inputs.append(self.notes.inputs)
        return y


class _Token:
    """Lives as long as what it is attached to."""


class _Note(torch.autograd.Function):
    """The identity; what it saves lives as long as all that autograd saves of the pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, stage: int, i: int, notes: Notes) -> Tensor:
        ctx.action, ctx.notes = backward(stage, i), notes
        marker, ctx.token = torch.zeros(1), _Token()
        ctx.save_for_backward(marker)
        notes.saved, notes.held = notes.saved + 1, notes.held + 1
        weakref.finalize(marker.untyped_storage(), notes.freed, "saved").atexit = False
        weakref.finalize(ctx.token, notes.freed, "held").atexit = False
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.notes.did.append(ctx.action)
        return gradient, None, None, None


@dataclass
class Seen:
    """A step on this rank."""

    loss: Any
    gradients: list[Tensor | None]
    weights: list[Tensor]
    before: list[Tensor]
    did: list[Action]
    saved: list[int]
    held: list[int]
    inputs: list[int]
    arguments: list[Tensor]


Start = Callable[[Share], Callable[[Tensor, Tensor], Any]]


def run(trial: Trial, case: Case, start: Start, steps: int = 1) -> list[Seen]:
    """Give `start` a share, and what it returns a batch, so many times; collective over the lab.

    Where a rank does not have the first stage, its inputs are no numbers, and so for the targets.
    """

    def given() -> tuple[Tensor, Tensor]:
        inputs, targets = case.inputs.clone(), case.targets.clone()
        if trial.rank != 0:
            inputs.fill_(float("nan"))
        if trial.rank != trial.size - 1:
            targets.fill_(float("nan"))
        return inputs, targets

    def stepped() -> list[Seen]:
        share, seen = case.share(), []
        notes = Notes(case)
        parameters = share.parameters()
        before = [p.detach().clone() for p in parameters]
        for number, stage in share.own.items():
            share.own[number] = Noted(stage, number, notes, trial.size == 1)
        step = start(share)
        for _ in range(steps):
            for parameter in parameters:
                parameter.grad = None
            notes.did, notes.most_saved, notes.most_held, notes.most_inputs = [], [], [], []
            arguments = given()
            loss = step(*arguments)
            seen.append(
                Seen(
                    loss,
                    [p.grad for p in parameters],
                    [p.detach().clone() for p in parameters],
                    before,
                    notes.did,
                    notes.most_saved,
                    notes.most_held,
                    notes.most_inputs,
                    list(arguments),
                )
            )
        return seen

    _import_all()
    return trial.run_function(stepped, seconds=SECONDS, explain=no_gradients_come) or []


def no_gradients_come(endings: dict[int, Ended]) -> Finding | None:
    """The last rank has done all its passes, so every activation came; and all others wait."""
    *others, last = (endings[rank].kind for rank in sorted(endings))
    if last != "returned" or not others or any(kind != "stuck" for kind in others):
        return None
    found, told = MISTAKES.gradients_not_sent(), ending(endings)
    return Finding(f"{found.text}\n{told.text}" if told else found.text, found.mistake)


@functools.cache
def _import_all() -> None:
    """What torch imports at the first backward pass from a gradient: not in the learner's time."""
    torch.zeros(1, requires_grad=True).mul(1).backward(torch.zeros(1))


# Requirements on one step


def weights_stay(seen: Seen) -> Finding | None:
    for number, (now, before) in enumerate(zip(seen.weights, seen.before, strict=True)):
        if not same(now, before):
            return MISTAKES.weights_updated(name=f"parameter {number} of this rank")
    return None


def arguments_stay(case: Case, seen: Seen) -> Finding | None:
    inputs, targets = seen.arguments
    if inputs.requires_grad:
        return evidence(
            "`inputs` requires a gradient after the step, and belongs to the caller: nobody needs "
            "the first stage's, and tokens are whole numbers, which have none"
        )
    if case.trial.rank == 0 and not same(inputs, case.inputs):
        return COMMON.argument_changed(name="`inputs`")
    if case.trial.rank == case.trial.size - 1 and not same(targets, case.targets):
        return COMMON.argument_changed(name="`targets`")
    return None


def once(case: Case, seen: Seen) -> Finding | None:
    """Whether no stage computes a micro-batch again."""
    forwards = [action for action in seen.did if action.kind == "forward"]
    for action in forwards:
        if action.micro_batch >= 0 and (times := forwards.count(action)) > 1:
            return MISTAKES.recomputed(stage=action.stage, i=action.micro_batch, times=times)
    return None


def in_order(case: Case, seen: Seen) -> Finding | None:
    """Whether the rank did its actions, in the schedule's order."""
    own, ranks = case.schedule[case.trial.rank], case.ranks if case.chunks == 1 else None
    did = seen.did
    for number, right in enumerate(own):
        if number == len(did):
            return evidence(
                f"rank {case.trial.rank} does not do {text(right, ranks)}: it ends after "
                f"{number} of {len(own)} actions"
            )
        if did[number].micro_batch < 0:
            return evidence(
                f"what stage {did[number].stage} gets for {text(right, ranks)} is no micro-batch "
                "of this batch, cut by `tensor_split`, as the stage before gives it"
            )
        if did[number] != right:
            got = texts([*did[: number + 1]], ranks)
            return MISTAKES.other_order(
                rank=case.trial.rank, got=got, right=texts(own[: number + 1], ranks)
            )
    if len(did) > len(own):
        return evidence(f"rank {case.trial.rank} does {len(did)} actions where {len(own)} are its")
    return None


def freed(case: Case, seen: Seen) -> Finding | None:
    """Whether at each forward pass no more is held than the actions so far leave."""
    right, flying = [], 0
    for action in case.schedule[case.trial.rank]:
        flying += 1 if action.kind == "forward" else -1
        if action.kind == "forward":
            right.append(flying)
    for got, most in zip(seen.saved, right, strict=False):
        if got > most:
            return MISTAKES.graph_kept(rank=case.trial.rank, got=got, right=most)
    for what in (seen.held, seen.inputs):
        for got, most in zip(what, right, strict=False):
            if got > most + LOOSE_ENDS:
                return MISTAKES.never_freed(rank=case.trial.rank, got=got, right=most)
    return None


def loss_is(case: Case, seen: Seen) -> Finding | None:
    trial = case.trial
    if trial.rank != trial.size - 1:
        if seen.loss is None:
            return None
        return MISTAKES.loss_everywhere(rank=trial.rank, got=f"a {type(seen.loss).__name__}")
    if not isinstance(seen.loss, float):
        got = "None" if seen.loss is None else f"a {type(seen.loss).__name__}"
        return COMMON.wrong_type(name="the loss on the last rank", got=got, right="a float")
    right = case.loss()
    if abs(seen.loss - right) <= TOLERANCE * max(1.0, right):
        return None
    return _instead(
        case, torch.tensor([seen.loss]).double(), _losses, "the loss", "values"
    ) or evidence(f"the loss is {seen.loss:.6g} where {right:.6g} is right")


def _losses(case: Case, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [mean_square(nn.Sequential(*case.layers)(inputs), targets).view(1)]


def _gradients(case: Case, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    return case.gradients(inputs, targets)


Of = Callable[[Case, Tensor, Tensor], list[Tensor]]


def _instead(
    case: Case, got: Tensor | list[Tensor], of: Of, name: str, what: str
) -> Finding | None:
    """The mistake in weighing micro-batches that gives all of `got`."""
    found = got if isinstance(got, list) else [got]
    counts, samples, pieces = case.counts(), case.samples, case.pieces
    cut = list(
        zip(case.inputs.tensor_split(pieces), case.targets.tensor_split(pieces), strict=True)
    )
    each = [of(case, x, t) for x, t in cut]

    def are(values: list[Tensor]) -> bool:
        return all(same(a, b, TOLERANCE) for a, b in zip(found, values, strict=True))

    def weighed(weights: list[float]) -> list[Tensor]:
        return [
            sum(w * one[number] for w, one in zip(weights, each, strict=True))
            for number in range(len(found))
        ]

    if pieces == 1 or are(of(case, case.inputs, case.targets)):
        return None
    if are(weighed([1.0] * pieces)):
        return MISTAKES.loss_not_divided(name=name, what=what, times=pieces)
    if are(weighed([1 / pieces] * pieces)):
        return MISTAKES.remainder_unweighted(name=name, counts=counts)
    last = [0.0] * (pieces - 1)
    if any(are(weighed([*last, w])) for w in (counts[-1] / samples, 1.0, 1 / pieces)):
        return MISTAKES.not_accumulated(name=name)
    used = samples // pieces * pieces
    for some in {used, samples - counts[-1]} - {samples, 0}:
        part = of(case, case.inputs[:some], case.targets[:some])
        if are(part) or are([one * some / samples for one in part]):
            return MISTAKES.remainder_dropped(
                name=name, pieces=pieces, samples=samples, counts=counts
            )
    return None


def gradients_are(case: Case, seen: Seen) -> Finding | None:
    right = case.gradients(case.inputs, case.targets)
    for number, gradient in enumerate(seen.gradients):
        if gradient is None:
            name = f"the gradient of parameter {number}"
            if case.trial.rank < case.trial.size - 1:
                return MISTAKES.no_boundary_gradient(name=name, rank=case.trial.rank)
            return evidence(f"{name} is None")
    name = "the gradient of this rank's parameters"
    if found := _instead(case, list(seen.gradients), _gradients, name, "gradients"):
        return found
    if case.trial.rank < case.trial.size - 1 and _ones(case, seen):
        return MISTAKES.wrong_start(name=name)
    for number, (got, one) in enumerate(zip(seen.gradients, right, strict=True)):
        found = equal(got, one, f"the gradient of parameter {number} of this rank", TOLERANCE)
        if found is not None:
            return found
    return None


def _ones(case: Case, seen: Seen) -> bool:
    """Whether the gradients are those of the sum of the rank's stages' outputs."""
    if case.chunks > 1:
        return False
    model = nn.Sequential(*copy.deepcopy(case.layers[: case.trial.rank + 1]))
    model(case.inputs).sum().backward()
    own = [p.grad for p in model[-1].parameters()]
    return all(same(a, b, TOLERANCE) for a, b in zip(seen.gradients, own, strict=True))


def messages(case: Case, steps: int = 1) -> Finding | None:
    """Whether this rank sent the tensors that others need, each once, and nothing else."""
    trial = case.trial
    calls = trial.calls[trial.rank]
    if other := next((c for c in calls if c.op not in (*SENDS, *RECEIVES)), None):
        return evidence(
            f"rank {trial.rank} calls {other.op}: what goes from one stage to the next concerns "
            "two ranks, and needs a message from one to the other"
        )
    widths = case.widths
    right, size = 0, 0
    for stage in range(trial.rank, case.count, case.ranks):
        for other, cut in ((stage + 1, stage + 1), (stage - 1, stage)):
            if 0 <= other < case.count and other % case.ranks != trial.rank:
                right += case.pieces * steps
                size += case.samples * widths[cut] * 8 * steps
    sends = trial.sends(trial.rank)
    got = sum(call.bytes_sent for call in sends)
    if len(sends) != right or got != size:
        return MISTAKES.sent_more(
            rank=trial.rank,
            got=f"{len(sends)} messages with {got} bytes",
            right=f"{right} with {size} bytes",
        )
    return None
