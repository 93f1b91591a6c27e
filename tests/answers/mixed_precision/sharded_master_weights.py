"""Answers to `sharded_master_weights`."""

import math

import torch
import torch.distributed as dist
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("sharded_master_weights")
Reference = answers.reference()

OWN = "own = self.flat.chunk(group.size())[group.rank()]"
MASTER = "self.master = nn.Parameter(own.float())"
OPTIMIZER = "self.optimizer = make_optimizer([self.master])"
BUFFER = "whole = torch.zeros_like(self.flat)"
FREED = "parameter.grad = None"
MEAN = "whole /= self.group.size()"
PART = "part = torch.empty_like(self.master, dtype=whole.dtype)"
REDUCE = "dist.reduce_scatter_single(part, whole, group=self.group)"
MOVE = "self.master.grad = part.float()"
UNSCALE = "scaler.unscale([self.master.grad])"
TAKEN = "taken = math.isfinite(norm)"
CLIP = "self.master.grad *= max_norm / norm"
STEP = "self.optimizer.step()"
ROUND = "part = self.master.detach().to(self.flat.dtype)"
GATHER = "dist.all_gather_single(self.flat, part, group=self.group)"
END = "self.master.grad = None"
UPDATE = "scaler.update(not taken)"
RETURN = "return taken"

ABOVE = "if norm > max_norm:"
EMPTY = "whole = torch.empty_like(self.flat)"
THERE = "if parameter.grad is not None:"
ZEROED = (
    "if parameter.grad is None:\n                whole[start : start + parameter.numel()] = 0\n"
    "            else:"
)
SIZE = "start += parameter.numel()\n"
PLACE = "whole[start : start + parameter.numel()]"
OWN_PART = "self.flat.chunk(self.group.size())[self.group.rank()]"
OWN_OVERFLOW = (UNSCALE, "overflow = " + UNSCALE), (TAKEN, "taken = not overflow")
NEW_MEMORY = (
    "flat = torch.empty_like(self.flat)\n            "
    + GATHER.replace("self.flat", "flat")
    + "\n            start = 0\n            for parameter in self.parameters:"
    "\n                part = flat[start : start + parameter.numel()]"
    "\n                parameter.data = part.view_as(parameter)"
    "\n                start += parameter.numel()\n            self.flat = flat"
)

for mistake, name, *edits in (
    ("wrong_shape", "everything", (MASTER, "self.master = nn.Parameter(self.flat.float())")),
    ("infinite_mean", "divided_after", (MEAN, "pass"), (MOVE, MOVE + " / self.group.size()")),
    ("infinite_mean", "float16", (BUFFER, BUFFER.replace(")", ", dtype=torch.float16)"))),
    ("not_a_number", "empty_at_its_end", (BUFFER, EMPTY), (THERE, ZEROED)),
    (
        "clipped_by_own_norm",
        "own_norm",
        (ABOVE, "norm = self.master.grad.norm().item()\n            " + ABOVE),
    ),
    (
        None,
        "rebuilt_from_the_weights",
        (STEP, f"self.master.data.copy_({OWN_PART})\n            " + STEP),
    ),
    (
        "skips_alone",
        "by_its_own_shard",
        *OWN_OVERFLOW,
        (STEP + "\n", STEP + "\n        if True:\n"),
        (ABOVE, "if max_norm < norm < math.inf:"),
    ),
    ("leaves_alone", "by_its_own_shard_and_leaves", *OWN_OVERFLOW),
    ("stepped_anyway", "always_steps", (TAKEN, "taken = True")),
    ("not_gathered", "own_part_only", (GATHER, f"{OWN_PART}.copy_(part)")),
    (None, "never_updated", (UPDATE, "pass")),
    ("default_group", "default_group", (GATHER, GATHER.replace(", group=self.group", ""))),
    (None, "float_first", (OWN, OWN.replace("flat", "flat.float()"))),
    ("wrong_dtype", "not_float", (MASTER, "self.master = nn.Parameter(own.clone())")),
    (None, "model_s_optimizer", (OPTIMIZER, OPTIMIZER.replace("[self.master]", "self.parameters"))),
    (None, "gradients_left", (FREED, "pass")),
    (None, "gradient_kept", (END, "pass")),
    (None, "summed", (MEAN, "pass")),
    (None, "stretched", (ABOVE, "if norm > 0:")),
    (None, "not_clipped", (CLIP, "pass")),
    (
        None,
        "those_with_a_gradient",
        ("            " + SIZE, ""),
        (THERE + "\n", THERE + "\n                " + SIZE),
        (PLACE, "whole[start - parameter.numel() : start]"),
    ),
    (None, "clipped_in_scale", (UNSCALE, "pass"), (STEP, UNSCALE + "\n            " + STEP)),
    (
        None,
        "gathered_in_32_bits",
        (ROUND, "part = self.master.detach()\n            every = self.flat.float()"),
        (GATHER, GATHER.replace("self.flat", "every") + "\n            self.flat.copy_(every)"),
    ),
    (None, "reduced_in_32_bits", (BUFFER, BUFFER.replace(")", ", dtype=torch.float32)"))),
    (None, "new_memory", (GATHER, NEW_MEMORY)),
    ("returns_none", "no_return", (RETURN, "pass")),
    (None, "the_buffer_is_kept", (MOVE, MOVE + "\n        self.buffer = whole")),
    (
        "not_a_number",
        "divides_by_a_norm_of_zero",
        (ABOVE, "if True:"),
        (CLIP, "self.master.grad *= min(norm, max_norm) / squares.sqrt()"),
    ),
):
    answers.edit(mistake, name, *edits)
answers.right_edit(
    "sums_in_float32",
    (MEAN, "pass"),
    (PART, "part = torch.empty_like(whole)"),
    (REDUCE, "dist.all_to_all_single(part, whole, group=self.group)"),
    (MOVE, "self.master.grad = part.view(self.group.size(), -1).float().mean(0)"),
)


@answers.wrong(None)
class MomentumInASkip(Reference):
    """The optimizer steps along nothing, and its momentum goes on."""

    def step(self, scaler, max_norm):
        scaler.unscale([self.master.grad])
        squares = self.master.grad.square().sum()
        dist.all_reduce(squares, group=self.group)
        taken = math.isfinite(squares.item())
        if taken:
            self.master.grad *= min(1.0, max_norm / max(squares.item() ** 0.5, 1e-30))
        else:
            self.master.grad.nan_to_num_(0, 0, 0)
        self.optimizer.step()
        self.master.grad = None
        part = self.master.detach().to(self.flat.dtype)
        dist.all_gather_single(self.flat, part, group=self.group)
        scaler.update(not taken)
        return taken


@answers.right
class TwoNumbers(Reference):
    """One for the overflow, one for the norm; it gathers after a skipped step too."""

    def step(self, scaler, max_norm):
        bad = torch.tensor(float(scaler.unscale([self.master.grad])))
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.group)
        if not bad:
            squares = self.master.grad.double().square().sum()
            dist.all_reduce(squares, group=self.group)
            self.master.grad.mul_(min(1.0, max_norm / (squares.sqrt().item() + 1e-6)))
            self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_gather_single(self.flat, self.master.detach().to(self.flat), group=self.group)
        scaler.update(bool(bad))
        return not bad


@answers.right
class AsLists(Reference):
    """The older calls, with a list of chunks."""

    def collect(self):
        parts = []
        for p in self.parameters:
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append(gradient.flatten() / self.group.size())
            p.grad = None
        whole = torch.cat(parts)
        whole = torch.cat([whole, whole.new_zeros(len(self.flat) - len(whole))])
        chunks = list(whole.chunk(self.group.size()))
        part = torch.empty_like(chunks[0])
        dist.reduce_scatter(part, chunks, group=self.group)
        self.master.grad = part.to(torch.float32)

    def step(self, scaler, max_norm):
        overflow = scaler.unscale([self.master.grad])
        own = torch.tensor([self.master.grad.norm(), float(overflow)])
        everyone = [torch.empty(2) for _ in range(self.group.size())]
        dist.all_gather(everyone, own, group=self.group)
        norms, flags = torch.stack(everyone).unbind(1)
        if not (overflow := bool(flags.any())):
            self.master.grad *= (max_norm / norms.norm()).clamp(max=1)
            self.optimizer.step()
            own = self.master.detach().to(self.flat.dtype)
            dist.all_gather(list(self.flat.chunk(self.group.size())), own, group=self.group)
        self.master.grad = None
        scaler.update(overflow)
        return 1 - overflow


@answers.right
class AgreesBefore(Reference):
    """Compares the ranks' gradients before they are reduced."""

    def collect(self):
        found = [p.grad for p in self.parameters if p.grad is not None]
        self.bad = torch.tensor(float(not all(bool(g.isfinite().all()) for g in found)))
        dist.all_reduce(self.bad, group=self.group)
        super().collect()

    def step(self, scaler, max_norm):
        if not self.bad:
            return super().step(scaler, max_norm)
        self.master.grad = None
        scaler.update(True)
        return False


@answers.right
class ClipsInScale(Reference):
    """The scaled gradient to the scaled limit; the shard is sliced by hand."""

    def __init__(self, model, make_optimizer, group):
        super().__init__(model, make_optimizer, group)
        width = len(self.flat) // group.size()
        own = self.flat[group.rank() * width :][:width]
        self.master = nn.Parameter(own.to(torch.float32).clone())
        self.optimizer = make_optimizer([self.master])

    def step(self, scaler, max_norm):
        squares = self.master.grad.square().sum()
        dist.all_reduce(squares, group=self.group)
        norm = squares.sqrt().item()
        overflow = scaler.unscale([self.master.grad]) or not math.isfinite(norm)
        if not overflow:
            self.master.grad *= min(1.0, max_norm * scaler.scale / max(norm, 1e-30))
            self.optimizer.step()
            part = self.master.data.to(self.flat.dtype)
            work = dist.all_gather_single(self.flat, part, group=self.group, async_op=True)
            work.wait()
        self.master.grad = None
        scaler.update(overflow)
        return not overflow
