"""Answers to `sharded_master_weights`."""

import math

import torch
import torch.distributed as dist
from torch import nn

from parlab.answers import Answers

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
TOLD = "dist.all_reduce(squares, group=self.group)"
TAKEN = "taken = math.isfinite(norm)"
CLIP = "self.master.grad *= max_norm / norm"
STEP = "self.optimizer.step()"
ROUND = "part = self.master.detach().to(self.flat.dtype)"
GATHER = "dist.all_gather_single(self.flat, part, group=self.group)"
END = "self.master.grad = None"
UPDATE = "scaler.update(not taken)"
RETURN = "return taken"

answers.edit(
    "whole_master",
    "everything_on_every_rank",
    (MASTER, "self.master = nn.Parameter(self.flat.float())"),
)
answers.edit(
    "view_of_whole",
    "float_first",
    (OWN, "own = self.flat.float().chunk(group.size())[group.rank()]"),
)
answers.edit("copies_of_16_bits", "not_float", (MASTER, "self.master = nn.Parameter(own.clone())"))
answers.edit(
    "optimizer_of_parameters",
    "optimizer_of_the_model",
    (OPTIMIZER, "self.optimizer = make_optimizer(self.parameters)"),
)
answers.edit("another_part", "the_next_part", ("[group.rank()]", "[group.rank() - 1]"))
answers.edit("gradients_left", "gradients_left", (FREED, "pass"))
answers.edit("gradient_kept", "gradient_kept", (END, "pass"))
answers.edit("gradient_kept", "gradient_zeroed", (END, "self.master.grad.zero_()"))
answers.edit(
    "not_reduced",
    "own_samples",
    (REDUCE, "part.copy_(whole.chunk(self.group.size())[self.group.rank()])"),
)
answers.edit("summed", "summed", (MEAN, "pass"), (MOVE, MOVE))
answers.edit(
    "overflow_in_the_sum",
    "divided_after",
    (MEAN, "pass"),
    (MOVE, "self.master.grad = part.float() / self.group.size()"),
)
answers.edit("garbage_in_the_buffer", "empty", (BUFFER, "whole = torch.empty_like(self.flat)"))
answers.edit(
    "garbage_in_the_buffer",
    "empty_at_its_end",
    (BUFFER, "whole = torch.empty_like(self.flat)"),
    (
        "if parameter.grad is not None:",
        "if parameter.grad is None:\n                whole[start : start + parameter.numel()] = 0\n"
        "            else:",
    ),
)
answers.edit(
    "clipped_by_own_norm",
    "own_norm",
    (
        "if norm > max_norm:",
        "norm = self.master.grad.norm().item()\n            if norm > max_norm:",
    ),
)
answers.edit(
    "clipped_by_own_norm",
    "by_the_library",
    (
        "if norm > max_norm:\n                " + CLIP,
        "torch.nn.utils.clip_grad_norm_([self.master], max_norm)",
    ),
)
answers.edit("not_clipped", "not_clipped", (CLIP, "pass"))
answers.edit(
    "norms_added",
    "norms_added",
    ("self.master.grad.square().sum()", "self.master.grad.norm()"),
    ("squares.sqrt().item()", "squares.item()"),
)
answers.edit("norm_without_root", "squares_as_norm", ("squares.sqrt().item()", "squares.item()"))
answers.edit(
    "none_left_out",
    "those_with_a_gradient",
    ("            start += parameter.numel()\n", ""),
    (
        "            if parameter.grad is not None:\n",
        "            if parameter.grad is not None:\n                start += parameter.numel()\n",
    ),
    ("whole[start : start + parameter.numel()]", "whole[start - parameter.numel() : start]"),
)
answers.edit(
    "sent_as_float16",
    "always_float16",
    (BUFFER, BUFFER.replace("flat)", "flat, dtype=torch.float16)")),
)
answers.edit(
    "clipped_before_unscaling",
    "clipped_in_scale",
    (UNSCALE, "pass"),
    (STEP, "scaler.unscale([self.master.grad])\n            " + STEP),
)
answers.edit("not_unscaled", "not_unscaled", (UNSCALE, "pass"))
answers.edit(
    "rebuilt_each_step",
    "rebuilt_from_the_weights",
    (
        STEP,
        "own = self.flat.chunk(self.group.size())[self.group.rank()]\n"
        "            self.master.data.copy_(own)\n            " + STEP,
    ),
)
answers.edit(
    "rebuilt_each_step",
    "rounded_after_the_step",
    (ROUND, ROUND + "\n            self.master.data.copy_(part)"),
)
answers.edit(
    "skips_alone",
    "by_its_own_shard",
    (UNSCALE, "overflow = scaler.unscale([self.master.grad])"),
    (TAKEN, "taken = not overflow"),
    ("self.optimizer.step()\n", "self.optimizer.step()\n        if True:\n"),
    ("if norm > max_norm:", "if max_norm < norm < math.inf:"),
)
answers.edit(
    "leaves_alone",
    "by_its_own_shard_and_leaves",
    (UNSCALE, "overflow = scaler.unscale([self.master.grad])"),
    (TAKEN, "taken = not overflow"),
)
answers.edit("stepped_anyway", "always_steps", (TAKEN, "taken = True"))
answers.edit(
    "moved_in_a_skip",
    "zeros_for_gradients",
    (
        "if taken:\n            if",
        "if not taken:\n            self.master.grad.zero_()\n        if True:\n            if",
    ),
)
answers.edit("not_copied_back", "never_gathered", (GATHER, "pass"))
answers.edit(
    "not_gathered",
    "own_part_only",
    (GATHER, "self.flat.chunk(self.group.size())[self.group.rank()].copy_(part)"),
)
answers.edit(
    "gathered_masters",
    "gathered_in_32_bits",
    (ROUND, "part = self.master.detach()\n            every = self.flat.float()"),
    (GATHER, GATHER.replace("self.flat", "every") + "\n            self.flat.copy_(every)"),
)
answers.edit(
    "gradients_in_32_bits",
    "reduced_in_32_bits",
    (BUFFER, "whole = torch.zeros_like(self.flat, dtype=torch.float32)"),
)
answers.edit(
    "all_reduced",
    "all_reduced",
    (REDUCE, "dist.all_reduce(whole, group=self.group)\n        "
             "part = whole.chunk(self.group.size())[self.group.rank()]"),
)  # fmt: skip
answers.edit(
    "new_memory",
    "new_memory",
    (
        GATHER,
        "flat = torch.empty_like(self.flat)\n            "
        + GATHER.replace("self.flat", "flat")
        + "\n            start = 0"
        "\n            for parameter in self.parameters:"
        "\n                part = flat[start : start + parameter.numel()]"
        "\n                parameter.data = part.view_as(parameter)"
        "\n                start += parameter.numel()"
        "\n            self.flat = flat",
    ),
)
answers.edit("not_updated", "never_updated", (UPDATE, "pass"))
answers.edit("updated_twice", "updated_twice", (UPDATE, UPDATE + "\n        " + UPDATE))
answers.edit("told_the_opposite", "told_taken", (UPDATE, "scaler.update(taken)"))
answers.edit("returns_the_opposite", "whether_skipped", (RETURN, "return not taken"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit("default_group", "default_group", (GATHER, GATHER.replace(", group=self.group", "")))
answers.edit(
    None,
    "a_copy_is_kept",
    (MASTER, MASTER + "\n        self.whole = self.flat.float()"),
)
answers.edit(None, "the_buffer_is_kept", (MOVE, MOVE + "\n        self.buffer = whole"))
answers.edit(
    None, "reduced_twice", (REDUCE, "dist.reduce_scatter_single(part, whole.clone(), "
    "group=self.group)\n        " + REDUCE),
)  # fmt: skip


answers.edit(
    "not_a_number",
    "divides_by_a_norm_of_zero",
    ("if norm > max_norm:", "if True:"),
    (CLIP, "self.master.grad *= min(norm, max_norm) / squares.sqrt()"),
)
answers.edit(
    None,
    "divided_in_step",
    (MEAN, "whole /= 4 * self.group.size()"),
    (UNSCALE, "self.master.grad *= 4\n        " + UNSCALE),
)


@answers.wrong("moved_in_a_skip")
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
        mine = torch.tensor([self.master.grad.norm(), float(overflow)])
        everyone = [torch.empty(2) for _ in range(self.group.size())]
        dist.all_gather(everyone, mine, group=self.group)
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
class SumsInFloat32(Reference):
    """Every rank sends each other its part in 16 bits, and adds up in 32."""

    def collect(self):
        whole, start = torch.zeros_like(self.flat), 0
        for p in self.parameters:
            if p.grad is not None:
                whole[start : start + p.numel()].copy_(p.grad.flatten())
            p.grad = None
            start += p.numel()
        parts = torch.empty_like(whole)
        dist.all_to_all_single(parts, whole, group=self.group)
        self.master.grad = parts.view(self.group.size(), -1).float().mean(0)


@answers.right
class AgreesBefore(Reference):
    """Looks at its own gradients before they are reduced, and tells the others."""

    def collect(self):
        found = [p.grad for p in self.parameters if p.grad is not None]
        finite = all(bool(gradient.isfinite().all()) for gradient in found)
        self.bad = torch.tensor(0 if finite else 1)
        dist.all_reduce(self.bad, group=self.group)
        super().collect()

    def step(self, scaler, max_norm):
        scaler.unscale([self.master.grad])
        if self.bad:
            self.master.grad = None
            scaler.update(True)
            return False
        square = self.master.grad.norm() ** 2
        dist.all_reduce(square, group=self.group)
        torch.nn.utils.clip_grads_with_norm_([self.master], max_norm, square.sqrt())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        dist.all_gather_single(self.flat, self.master.data.to(self.flat), group=self.group)
        scaler.update(False)
        return True


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
