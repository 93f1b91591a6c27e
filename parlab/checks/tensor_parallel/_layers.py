"""Compare a learner's parallel layer with the serial layer that it is a share of."""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parlab.checks.base.compare import has_type, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _passes as passes
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, Run, Variant, gradient_of, random

MISTAKES = Mistakes(
    no_reduce_backward=(
        "each rank has only its own part: the ranks' parts must be added in the backward pass. Use "
        "f where the parallel part begins"
    ),
    reduced_again=(
        "it is multiplied by the number of ranks: it was complete on every rank, and was summed "
        "over the ranks again"
    ),
    not_summed=(
        "the forward pass sends nothing, so each rank has only its own part of the sum. Use g "
        "where the parallel part ends"
    ),
    whole_weights="this rank has all of it: keep only its part",
    output_gathered="this rank has the outputs of all ranks: keep only its part",
    wrong_dimension=(
        "it is cut along the wrong dimension. PyTorch stores a weight as (outputs, inputs), and an "
        "embedding as (tokens, hidden size)"
    ),
    fused_as_one=(
        "this is a part of all outputs together: the layer computes several matrices, such as Q, "
        "K, and V. Cut each section on its own"
    ),
    strided="it has every N-th row or column: rank r needs the r-th of N parts, in one piece",
    not_own_memory=(
        "{name} has no memory of its own: it is a view of a larger tensor or of the serial layer. "
        "Copy this rank's part"
    ),
    kept_whole="the serial layer is still in memory after the cut: keep no reference to it",
    **passes.MISTAKES.texts,
)


def texts(*keys: str) -> dict[str, str]:
    """Return the texts of these mistakes, for an exercise in which learners make them."""
    return {key: MISTAKES.texts[key] for key in keys}


@dataclass(frozen=True)
class Share:
    """A rank's part of a tensor: along `dim` of each section, or all of it if `dim` is None."""

    dim: int | None = None
    sections: tuple[int, ...] = ()

    def pieces(self, whole: Tensor) -> Sequence[Tensor]:
        return whole.split(list(self.sections) or [whole.shape[self.dim]], dim=self.dim)

    def of(self, whole: Tensor, rank: int, size: int) -> Tensor:
        if self.dim is None:
            return whole
        parts = [piece.chunk(size, dim=self.dim)[rank] for piece in self.pieces(whole)]
        return torch.cat(parts, dim=self.dim)

    def wrong(self, whole: Tensor, rank: int, size: int) -> Iterator[tuple[str, Tensor]]:
        """Yield other parts that a rank might have."""
        yield "whole_weights", whole
        if self.dim is not None:
            yield "fused_as_one", Share(self.dim).of(whole, rank, size)
            rows = [p.movedim(self.dim, 0)[rank::size] for p in self.pieces(whole)]
            yield "strided", torch.cat(rows).movedim(0, self.dim)
            if whole.dim() == 2 and whole.shape[1 - self.dim] % size == 0:
                yield "wrong_dimension", Share(1 - self.dim).of(whole, rank, size)


WHOLE = Share()


@dataclass
class Case:
    """A serial layer, and the right share of it for each rank.

    Attributes:
        mistakes: the mistakes of the exercise. Of `MISTAKES`, only those among them are named.
        make: makes the serial layer, the same for each call.
        cut: makes this rank's layer from the serial layer, with the learner's function.
        x: the input of the serial layer.
        shares: this rank's part of the parameters, of "x", and of OUTPUT, if not all of it.
        forward, backward: all-reduces in each pass. None if the check itself examines the calls.
        message: bytes of one all-reduce, if not those of the output (forward) and of x (backward).
        wrong: the values that mistakes compute, from the serial values, the gradient of the output,
            this rank, and the number of ranks.
        partial: the mistake if the ranks' gradients of a whole tensor add up to the right one.
        in_place: whether the layer itself must be changed and returned.
        takes_apart: whether the serial layer may be destroyed.
        form: examines the layer after the cut.
        finish: whether to call `finish()` of the layer after the backward pass.
    """

    mistakes: Mistakes
    make: Callable[[], nn.Module]
    cut: Callable[[nn.Module], nn.Module]
    x: Tensor
    shares: Mapping[str, Share]
    forward: int | None = None
    backward: int | None = None
    message: int = 0
    wrong: Callable[[dict[str, Tensor], Tensor, int, int], Iterable[Variant]] = lambda *_: ()
    partial: str = "no_reduce_backward"
    in_place: bool = False
    takes_apart: bool = False
    form: Callable[[nn.Module], Finding | None] = lambda _: None
    finish: bool = False

    def own(self, name: str, whole: Tensor, trial: Trial) -> Tensor:
        """Return this rank's part of a parameter, of its gradient, or of another value."""
        share = self.shares.get(name.removeprefix(gradient_of("")), WHOLE)
        return share.of(whole, trial.rank, trial.size)

    def is_whole(self, name: str) -> bool:
        return self.shares.get(name.removeprefix(gradient_of("")), WHOLE) is WHOLE


def compare(trial: Trial, case: Case) -> tuple[dict[str, Tensor], Run]:
    """Require that the learner's layer is this rank's share of the serial layer.

    Returns:
        The values of the serial layer, and the run of the learner's layer on this rank.
    """
    right, gradient = _serial(trial, case)
    module, found = trial.run_function(_cut, case, seconds=SECONDS) or (None, None)
    trial.require(
        lambda: found,
        lambda: case.form(module),
        lambda: _parameters_are(module, case, trial),
    )
    run = trial.run_function(_run, trial, case, module, gradient, seconds=SECONDS)
    everyone = trial.gather(run and run.values)

    def limit(which: str, times: int | None, size: int) -> Finding | None:
        if times is None:
            return None
        return passes.sends_more(run, which, case.message or size, trial.size, times)

    def values() -> Finding | None:
        own = {name: case.own(name, value, trial) for name, value in right.items()}
        wrong = [*case.wrong(right, gradient, trial.rank, trial.size)]
        wrong += _wrong(run, right, own, everyone, case)
        return passes.values_are(run.values, own, wrong, case.mistakes)

    trial.require(
        lambda: passes.unchanged(run),
        values,
        lambda: limit("forward", case.forward, right[OUTPUT].nbytes),
        lambda: limit("backward", case.backward, case.x.nbytes),
    )
    return right, run


def _serial(trial: Trial, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    """Return what the serial layer computes, and the gradient of its output."""
    module, x = case.make(), case.x.clone().requires_grad_(case.x.is_floating_point())
    output = module(x)
    gradient = random(trial.draw, *output.shape)
    output.backward(gradient)
    right = {OUTPUT: output.detach()}
    if x.grad is not None:
        right[gradient_of("x")] = x.grad
    for name, p in module.named_parameters():
        right[gradient_of(name)] = torch.zeros_like(p) if p.grad is None else p.grad
    return right, gradient


def _cut(case: Case) -> tuple[nn.Module, Finding | None]:
    """Cut a fresh serial layer; return this rank's layer, and what is wrong with its memory."""
    whole = case.make()
    inside = [weakref.ref(p) for p in whole.parameters()]
    before = [p.detach().clone() for p in whole.parameters()]
    memory = {p.untyped_storage().data_ptr() for p in whole.parameters()}
    module = case.cut(whole)
    in_place = module is whole
    if found := has_type(module, nn.Module, "an nn.Module"):
        return module, found
    if case.in_place and not in_place:
        return module, observed("it returns another object: change its argument, and return that")
    if in_place or case.takes_apart:
        memory = set()
    elif not all(same(p, b) and p.requires_grad for p, b in zip(whole.parameters(), before)):  # noqa: B905
        return module, COMMON.argument_changed(name="the serial layer")
    del whole
    for name, p in module.named_parameters():
        storage = p.untyped_storage()
        if storage.nbytes() > p.nbytes or storage.data_ptr() in memory:
            return module, MISTAKES.not_own_memory(name=name)
    own = {id(p) for p in module.parameters()}

    def alive() -> bool:
        return any(ref() is not None and id(ref()) not in own for ref in inside)

    if not in_place and alive():
        gc.collect()  # slow, so only now
        if alive():
            return module, MISTAKES.kept_whole()
    return module, None


def _parameters_are(module: nn.Module, case: Case, trial: Trial) -> Finding | None:
    whole = {name: p.detach() for name, p in case.make().named_parameters()}
    got = {name: p.detach() for name, p in named_as(module, whole).items()}
    if got.keys() != whole.keys():
        return observed(f"the parameters are {sorted(got)}, expected {sorted(whole)}")
    wrong = [
        (name, key, value)
        for name, tensor in whole.items()
        for key, value in case.shares.get(name, WHOLE).wrong(tensor, trial.rank, trial.size)
    ]
    right = {name: case.own(name, tensor, trial) for name, tensor in whole.items()}
    return passes.values_are(got, right, wrong, case.mistakes, 0.0)


def _run(trial: Trial, case: Case, module: nn.Module, gradient: Tensor) -> Run:
    inputs, gradient = {"x": case.own("x", case.x, trial)}, case.own(OUTPUT, gradient, trial)
    run = passes.run(trial, module, inputs, gradient, module, finish=case.finish)
    for name, p in named_as(module, case.shares).items():
        run.values[gradient_of(name)] = None if p.grad is None else p.grad.clone()
    return run


def _wrong(
    run: Run,
    right: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    everyone: Sequence[Mapping[str, Tensor]],
    case: Case,
) -> Iterator[Variant]:
    """Yield what any parallel layer may compute instead."""
    ranks, output = len(everyone), run.values[OUTPUT]
    yield OUTPUT, "output_gathered", right[OUTPUT]
    if ranks > 1 and case.is_whole(OUTPUT) and not run.calls["forward"]:
        yield OUTPUT, "not_summed", output
    for name in own.keys() - {OUTPUT}:
        yield name, "reduced_again", ranks * own[name]
        if case.is_whole(name) and _are_parts([one[name] for one in everyone], right[name]):
            yield name, case.partial, run.values[name]


def _are_parts(everyone: Sequence[Tensor | None], right: Tensor) -> bool:
    """Return True if the ranks have different tensors that add up to the right one."""
    if len(everyone) == 1 or any(g is None or g.shape != right.shape for g in everyone):
        return False
    alike = all(same(g, everyone[0], TOLERANCE) for g in everyone)
    return not alike and same(sum(everyone), right, TOLERANCE)


def named_as(module: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    """Return parameters by name; a tied one by that of its names which is among `names`."""
    every = list(module.named_parameters(remove_duplicate=False))
    first = {id(p): name for name, p in reversed(every)}
    known = {id(p): name for name, p in reversed(every) if name in names}
    return {known.get(i, name): dict(every)[name] for i, name in first.items()}


def seeded(trial: Trial, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes the same module at each call, in float64."""
    seed = trial.draw.getrandbits(32)

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make().double()

    return made
