"""Steps of a learner's function, recorded from inside its stages."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from parlab import memory
from parlab.checks.base.compare import same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.unchanged import unchanged
from parlab.checks.pipeline_parallel import _messages
from parlab.checks.pipeline_parallel._models import Case
from parlab.pipeline import Action, backward, forward
from parlab.pipeline.stages import Share

MISTAKES = Mistakes(
    no_input_gradient=(
        "rank {rank} uses None where it needs a tensor. If this is the gradient for stage {stage}, "
        "`x.grad`: `x` must be a leaf that requires a gradient (`requires_grad_()`) before the "
        "forward pass"
    ),
)
# A step takes milliseconds, but on a busy machine the ranks may meet late.
SECONDS = 10.0
NUMBER_BYTES = 8  # storages with a single number, such as a loss, do not count

Step = Callable[[Tensor, Tensor], Any]
InFlight = tuple[tuple[int, int], ...]  # each stage, and its number of micro-batches


@dataclass
class StepRecord:
    """The record of one step on this rank.

    Attributes:
        gradients: the gradients of the parameters that are not frozen.
        actions: passes in order; micro-batch −1 if the stage's input is not from the batch.
        alive: before each action, the micro-batches in flight, and the bytes of the step's tensors,
            without gradients and messages.
        kept: these bytes, and messages, after the step, when the caller has dropped the batch.
        side_effect: a change of the caller's objects.
    """

    loss: Any
    gradients: list[Tensor | None]
    actions: list[Action]
    alive: list[tuple[InFlight, int]]
    kept: int
    side_effect: Finding | None


def run(case: Case, start: Callable[[Share], Step], steps: int = 1) -> list[StepRecord]:
    """Call `start` with a share. Call the step that it returns with a batch, `steps` times.

    Collective over the lab. Ranks without the first stage get useless inputs, and ranks without the
    last stage get useless targets.
    """
    recorder = Recorder(case)

    def stepped() -> list[StepRecord]:
        share = case.share()
        recorder.attach(share)
        step = start(share)
        return [recorder.step(step) for _ in range(steps)]

    return case.trial.run_function(stepped, seconds=SECONDS, explain=recorder.explain) or []


class StepStorages(memory.LiveStorages):
    """Counts the memory of a step's tensors, except for single numbers. Messages are separate."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[int, int] = {}  # bytes by storage

    def sends(self, tensor: Tensor) -> None:
        """Stop counting a tensor in `live`, because it is a message to another rank."""
        key = tensor.untyped_storage()._cdata
        if key in self._sizes and key not in self.messages:
            self.messages[key] = self._sizes[key]
            self.live -= self._sizes[key]
            self._sizes[key] = 0

    def _meet(self, storage: torch.UntypedStorage, allocated: bool) -> None:
        if storage.nbytes() > NUMBER_BYTES and storage._cdata not in self.messages:
            super()._meet(storage, allocated)

    def _free(self, key: int) -> None:
        self.messages.pop(key, None)
        super()._free(key)


class Recorder:
    """Records the steps of this rank's stages."""

    def __init__(self, case: Case) -> None:
        self.case, self.known = case, case.stage_inputs()
        self.actions: list[Action] = []

    def attach(self, share: Share) -> None:
        """Replace the stages of `share` with ones that record their passes."""
        self.parameters = share.parameters()
        self.trainable = [p.requires_grad for p in self.parameters]
        self.before = [p.detach().clone() for p in self.parameters]
        self.stages = [_Stage(stage, number, self) for number, stage in share.own.items()]
        share.own.update({stage.number: stage for stage in self.stages})

    def step(self, step: Step) -> StepRecord:
        for parameter in self.parameters:
            parameter.grad = None
        self.actions, self.mode_changed = [], False
        self.alive: list[tuple[InFlight, int]] = []
        self.storages = StepStorages()
        with self._messages_apart(), self.storages:
            inputs, targets = self._batch()
            loss = step(inputs, targets)
            side_effect = self._side_effect(inputs, targets)
            del inputs, targets
        if self._kept():
            gc.collect()
        pairs = zip(self.parameters, self.trainable, strict=True)
        gradients = [p.grad for p, trains in pairs if trains]
        return StepRecord(loss, gradients, self.actions, self.alive, self._kept(), side_effect)

    def explain(self, endings: _messages.Endings) -> Finding:
        """Report how far each rank came. Collective."""
        case, begun = self.case, self.actions
        actions = case.trial.gather(begun)
        found = next(filter(None, map(other_input, actions)), None)
        for rank, ended in endings.items():
            last, no_tensor = (actions[rank] or [None])[-1], "NoneType" in ended.error
            if not found and no_tensor and last and last.kind == "backward" and last.stage > 0:
                found = MISTAKES.no_input_gradient(rank=rank, stage=last.stage - 1)
        own = case.schedule[max(case.trial.rank, 0)]
        doing = f"has begun {case.texts(begun) or 'no action'}"
        if begun == own[: len(begun)] != own:
            doing += f". Its next action is {case.texts(own[len(begun) :][:1])}"
        return _messages.explain(case.trial, endings, doing, found)

    def act(self, action: Action) -> None:
        """Record that a pass begins."""
        flying = Counter(a.stage for a in self.actions if a.kind == "forward")
        flying.subtract(a.stage for a in self.actions if a.kind == "backward")
        self.alive.append((tuple(sorted(flying.items())), self._live()))
        self.actions.append(action)

    def _live(self) -> int:
        return self.storages.live - memory.tensor_bytes(
            p.grad for p in self.parameters if p.grad is not None and p.grad.nbytes > NUMBER_BYTES
        )

    def _kept(self) -> int:
        return self._live() + sum(self.storages.messages.values())

    def _batch(self) -> tuple[Tensor, Tensor]:
        case = self.case
        inputs, targets = case.inputs.clone(), case.targets.clone()
        if case.trial.rank != 0:
            inputs.fill_(-1 if case.tokens else float("nan"))
        if case.trial.rank != case.trial.size - 1:
            targets.fill_(float("nan"))
        return inputs, targets

    @contextmanager
    def _messages_apart(self) -> Iterator[None]:
        """Do not count sent tensors or the memory that the group itself needs."""
        group = self.case.trial.group
        send, receive = group.send, group.recv

        def sending(tensors: list[Tensor], *arguments: Any) -> Any:
            for tensor in tensors:
                self.storages.sends(tensor)
            with _disable_current_modes():
                return send(tensors, *arguments)

        def receiving(*arguments: Any) -> Any:
            with _disable_current_modes():
                return receive(*arguments)

        group.send, group.recv = sending, receiving
        try:
            yield
        finally:
            del group.send, group.recv  # the methods of its class again

    def _side_effect(self, inputs: Tensor, targets: Tensor) -> Finding | None:
        case, rank = self.case, self.case.trial.rank
        if self.mode_changed or not all(stage.in_mode() for stage in self.stages):
            return observed(
                "a stage is in another mode during or after the step than before. Leave `train()` "
                "and `eval()` to the caller: dropout and BatchNorm depend on them"
            )
        pairs = zip(self.parameters, self.trainable, self.before, strict=True)
        for number, (parameter, trains, before) in enumerate(pairs):
            if parameter.requires_grad != trains or not (trains or parameter.grad is None):
                return observed(
                    f"parameter {number} of this rank was {'not ' * trains}frozen before the step. "
                    "Leave `requires_grad` to the caller, and set no `.grad` of a frozen parameter"
                )
            if not same(parameter, before):
                return observed(
                    f"parameter {number} of this rank has changed. Only the caller changes "
                    "weights, between steps: all micro-batches of a step use the same ones"
                )
        if inputs.requires_grad:
            return observed(
                "`inputs` requires a gradient after the step. It belongs to the caller, and the "
                "gradient of the first stage's input is not needed"
            )
        if rank == 0 and (found := unchanged("`inputs`", inputs, case.inputs)):
            return found
        last = rank == case.trial.size - 1
        return unchanged("`targets`", targets, case.targets) if last else None


def other_input(actions: Sequence[Action]) -> Finding | None:
    """Require that stages compute only on tensors that the check knows."""
    unknown = [action.stage for action in actions if action.micro_batch < 0]
    if not unknown:
        return None
    if min(unknown) == 0:
        return observed("stage 0 is called on a tensor that is no micro-batch of `inputs`")
    return observed(
        f"stage {min(unknown)} is called on a tensor that is not the output of stage "
        f"{min(unknown) - 1} for any micro-batch. Call it on what `mailbox.receive` returned"
    )


class _Stage(nn.Module):
    """A stage that reports its passes to a recorder."""

    def __init__(self, stage: nn.Module, number: int, recorder: Recorder) -> None:
        super().__init__()
        self.stage, self.number, self.recorder = stage, number, recorder
        self.train(recorder.case.training)

    def in_mode(self) -> bool:
        """Return whether all of the stage is in the caller's mode."""
        return all(m.training == self.recorder.case.training for m in self.modules())

    def forward(self, x: Tensor) -> Tensor:
        known = enumerate(self.recorder.known[self.number])
        i = next((i for i, one in known if same(x, one, TOLERANCE)), -1)
        self.recorder.mode_changed |= not self.in_mode()
        self.recorder.act(forward(self.number, i))
        y = self.stage(x)
        if y.requires_grad:
            y.register_hook(lambda _: self.recorder.act(backward(self.number, i)))
        return y
