"""Compare a learner's parallel layer with the serial layer from which it is made."""

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parlab.checks.base.compare import has_type, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _passes as passes
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, Run, Variant, gradient_of, random
from parlab.costs.collectives import ring_bytes
from parlab.ledger.ledger import ring_bytes_sent

MISTAKES = Mistakes(
    not_summed=(
        "{wrong}. The {which} pass sends {got}, but to add up the parts of all ranks, it needs "
        "{times} × all_reduce of {size} bytes. Use f where the parallel part begins, and g where "
        "it ends"
    ),
    reduced_again=(
        "it is multiplied by the number of ranks: it was complete on every rank, and was summed "
        "over the ranks again"
    ),
    fused_as_one=(
        "this is a part of all outputs together: the layer computes several matrices, such as Q, "
        "K, and V. Cut each section on its own"
    ),
    kept_whole=(
        "a whole tensor is still in memory after the cut: {why}. Copy what this rank needs, and "
        "keep no reference to the serial layer"
    ),
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

    def of(self, whole: Tensor, rank: int, size: int) -> Tensor:
        if self.dim is None:
            return whole
        pieces = whole.split(list(self.sections) or [whole.shape[self.dim]], dim=self.dim)
        return torch.cat([piece.chunk(size, dim=self.dim)[rank] for piece in pieces], dim=self.dim)


WHOLE = Share()


@dataclass
class Case:
    """A serial layer, and the right share of it for each rank.

    Attributes:
        mistakes: the mistakes of the exercise. Findings name no other mistakes in `MISTAKES`.
        make: makes the serial layer, the same in each call.
        cut: makes this rank's layer from the serial layer, with the learner's function.
        x: the input of the serial layer.
        shares: this rank's part of the parameters, of "x", and of OUTPUT. Others are whole.
        forward, backward: all-reduces in each pass. None if the check itself examines the calls.
        message: bytes of one all-reduce. By default, those of the output (forward) or x (backward).
        wrong: computes the values of mistakes from the serial values, this rank, and the number of
            ranks.
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
    wrong: Callable[[dict[str, Tensor], int, int], Iterable[Variant]] = lambda *_: ()
    in_place: bool = False
    takes_apart: bool = False
    form: Callable[[nn.Module], Finding | None] = lambda _: None
    finish: bool = False

    def share(self, name: str) -> Share:
        """Return this rank's share of a parameter, of its gradient, or of another value."""
        return self.shares.get(name.removeprefix(gradient_of("")), WHOLE)

    def own(self, values: Mapping[str, Tensor], trial: Trial) -> dict[str, Tensor]:
        """Return this rank's parts of serial values."""
        return {n: self.share(n).of(v, trial.rank, trial.size) for n, v in values.items()}


def compare(trial: Trial, case: Case) -> Run:
    """Require that the learner's layer is this rank's share of the serial layer. Return its run."""
    right, gradient = _serial(trial, case)
    module, found = trial.run_function(_cut, case, seconds=SECONDS) or (None, None)
    trial.require(
        lambda: found,
        lambda: case.form(module),
        lambda: _parameters_are(module, case, trial),
    )
    run = trial.run_function(_run, trial, case, module, gradient, seconds=SECONDS)
    whole = [n for n in right if case.finish and n != OUTPUT and case.share(n) is WHOLE]
    sums = {
        "forward": (case.forward, case.message or right[OUTPUT].nbytes),
        "backward": (case.backward, case.message or case.x.nbytes),
        "finish()": (1 if whole else None, sum(right[n].nbytes for n in whole)),
    }

    def values() -> Finding | None:
        own = case.own(right, trial)
        wrong = [*case.wrong(right, trial.rank, trial.size)]
        wrong += [(n, "reduced_again", trial.size * one) for n, one in own.items() if n != OUTPUT]
        for name, value in own.items():
            which = "forward" if name == OUTPUT else "finish()" if name in whole else "backward"
            (times, size), calls = sums[which], run.calls[which]
            found = passes.values_are(run.values, {name: value}, wrong, case.mistakes)
            if found and not found.mistake and times and trial.size > 1:
                needed = times * ring_bytes("all_reduce", size, trial.size)
                if ring_bytes_sent(calls) < needed:
                    got = {"wrong": found.text, "got": passes.calls_text(calls)}
                    return case.mistakes.not_summed(which=which, times=times, size=size, **got)
            if found:
                return found
        return None

    def limit(which: str) -> Finding | None:
        times, size = sums[which]
        return None if times is None else passes.sends_more(run, which, size, trial.size, times)

    trial.require(
        lambda: _unchanged(run),
        values,
        *(lambda which=which: limit(which) for which in sums),
    )
    return run


def _unchanged(run: passes.Run) -> Finding | None:
    name = run.changed.replace("`x`", "its input")  # layers have other names for it
    return COMMON.argument_changed(name=name) if name else None


def _serial(trial: Trial, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    """Return the values that the serial layer computes, and the gradient of its output."""
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
    """Cut a fresh serial layer. Return this rank's layer, and what is wrong with its memory."""
    whole = case.make()
    inside = [weakref.ref(p) for p in whole.parameters()]
    before, described = [p.detach().clone() for p in whole.parameters()], repr(whole)
    memory = {p.untyped_storage().data_ptr() for p in whole.parameters()}
    module = case.cut(whole)
    in_place = module is whole
    if found := has_type(module, nn.Module, "an nn.Module"):
        return module, found
    if case.in_place and not in_place:
        return module, observed("it returns another object: change its argument, and return that")
    if in_place or case.takes_apart:
        memory = set()
    elif repr(whole) != described or not all(
        same(p, b) and p.requires_grad
        for p, b in zip(whole.parameters(), before)  # noqa: B905
    ):
        return module, COMMON.argument_changed(name="the serial layer")
    del whole
    for name, p in module.named_parameters():
        storage = p.untyped_storage()
        if storage.nbytes() > p.nbytes:
            return module, MISTAKES.kept_whole(why=f"{name} is a view of a larger tensor")
        if storage.data_ptr() in memory:
            return module, MISTAKES.kept_whole(why=f"{name} has the memory of the serial layer's")
    own = {id(p) for p in module.parameters()}

    def alive() -> bool:
        return any(ref() is not None and id(ref()) not in own for ref in inside)

    if not in_place and alive():
        gc.collect()
        if alive():
            return module, MISTAKES.kept_whole(
                why="something refers to the serial layer's parameters"
            )
    return module, None


def _parameters_are(module: nn.Module, case: Case, trial: Trial) -> Finding | None:
    whole = {name: p.detach() for name, p in case.make().named_parameters()}
    got = {name: p.detach() for name, p in named_as(module, whole).items()}
    if got.keys() != whole.keys():
        return observed(f"the parameters are {sorted(got)}, expected {sorted(whole)}")
    wrong = [
        (name, "fused_as_one", Share(share.dim).of(whole[name], trial.rank, trial.size))
        for name, share in case.shares.items()
        if share.sections and name in whole
    ]
    return passes.values_are(got, case.own(whole, trial), wrong, case.mistakes, 0.0)


def _run(trial: Trial, case: Case, module: nn.Module, gradient: Tensor) -> Run:
    own = case.own({"x": case.x, OUTPUT: gradient}, trial)
    run = passes.run(trial, module, {"x": own["x"]}, own[OUTPUT], module, finish=case.finish)
    for name, p in named_as(module, case.shares).items():
        run.values[gradient_of(name)] = None if p.grad is None else p.grad.clone()
    return run


def named_as(module: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    """Return parameters by name. For tied parameters, prefer the name that is among `names`."""
    every = list(module.named_parameters(remove_duplicate=False))
    first = {id(p): name for name, p in reversed(every)}
    known = {id(p): name for name, p in reversed(every) if name in names}
    return {known.get(i, name): dict(every)[name] for i, name in first.items()}


def seeded(trial: Trial, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes the same module in each call, in float64."""
    seed = trial.draw.getrandbits(32)

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make().double()

    return made
