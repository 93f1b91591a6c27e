"""Answers to `master_weights`."""

import torch
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("master_weights")
Reference = answers.reference()

MASTER = "self.master = [nn.Parameter(p.detach().float()) for p in self.parameters]"
OPTIMIZER = "self.optimizer = make_optimizer(self.master)"
MOVE = "copy.grad = None if parameter.grad is None else parameter.grad.float()"
FREE = "parameter.grad = None"
STEP = "self.optimizer.step()"
BACK = "parameter.detach().copy_(copy.detach())"

WITH_GRADIENT = MOVE.replace("= None if", "= torch.zeros_like(copy) if")
SIXTEEN = MASTER.replace("float()", "clone()")
CUT = "clamp(-65504, 65504)."  # the range of float16
REBUILD = (
    "for parameter, copy in zip(self.parameters, self.master, strict=True):\n"
    "            copy.data.copy_(parameter)\n        "
)
TENSORS = MASTER.replace("nn.Parameter(p.detach().float())", "p.detach().float().requires_grad_()")

for mistake, name, *edits in (
    (None, "model_s_own", (OPTIMIZER, OPTIMIZER.replace("master", "parameters"))),
    ("not_copied_back", "not_copied_back", (BACK, "pass")),
    ("not_copied_back", "copied_before", (STEP, "pass"), (BACK, BACK + "\n        " + STEP)),
    ("gradient_invented", "zeros_for_none", (MOVE, WITH_GRADIENT)),
    ("gradients_left", "not_freed", ("            " + FREE, "            pass")),
    ("new_memory", "data_replaced", (BACK, "parameter.data = copy.detach().to(parameter)")),
    ("wrong_dtype", "of_16_bits", (MASTER, SIXTEEN), (MOVE, MOVE.replace("float()", "clone()"))),
    ("wrong_dtype", "no_rounding", (BACK, "parameter.data = copy.data")),
    ("wrong_type", "forgotten", (MOVE, "pass")),
    ("wrong_type", "tensors", (MASTER, TENSORS)),
    ("wrong_type", "no_optimizer_yet", (OPTIMIZER, "self.optimizer = None")),
    ("raises", "gradient_of_16_bits", (MOVE, MOVE.replace(".float()", ""))),
    (None, "gradients_within_float16", (MOVE, MOVE.replace("float", CUT + "float"))),
    ("rebuilt_each_step", "rebuilt", (STEP, REBUILD + STEP)),
    ("rebuilt_each_step", "rounded_too", (BACK, BACK + "\n            copy.data.copy_(parameter)")),
    ("gradient_invented", "keeps_the_old_one", (MOVE, MOVE.replace("None if", "copy.grad if"))),
    (None, "adds_up", (MOVE, MOVE + " + (0 if copy.grad is None else copy.grad)")),
    (None, "step_forgotten", (STEP, "pass")),
    (None, "parameters_frozen", (OPTIMIZER, OPTIMIZER + "\n        model.requires_grad_(False)")),
    (None, "step_freezes", (BACK, BACK + "\n            parameter.requires_grad = False")),
    (None, "cleaned", (MOVE, MOVE.replace(".float()", ".float().nan_to_num()"))),
    (None, "within_float16", (BACK, BACK.replace("copy.detach()", f"copy.detach().{CUT[:-1]}"))),
):
    answers.edit(mistake, name, *edits)
answers.edit(
    None,
    "frozen_too",
    (MASTER, MASTER.replace("self.parameters]", "model.parameters()]")),
    says="has 6 tensors, expected 5",
)
answers.right_edit(
    "through_new_memory", (MOVE, MOVE.replace(".float()", ".clone().to(torch.float32)"))
)
answers.right_edit("through_data", (BACK, "parameter.data[...] = copy.data"))
answers.right_edit(
    "from_a_list", (MASTER, MASTER.replace("p.detach().float()", "torch.tensor(p.tolist())"))
)


@answers.wrong(None)
class CutOff(Reference):
    def step(self):
        self.optimizer.step()
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            mask = -(2**16) if parameter.dtype == torch.bfloat16 else -(2**13)
            bits = copy.detach().view(torch.int32) & mask
            parameter.detach().copy_(bits.view(torch.float32))


@answers.wrong(None)
class AddsTheUpdate(Reference):
    def step(self):
        old = [copy.detach().clone() for copy in self.master]
        self.optimizer.step()
        for parameter, copy, before in zip(self.parameters, self.master, old, strict=True):
            parameter.detach().add_((copy.detach() - before).to(parameter.dtype))


@answers.right
class Foreach(Reference):
    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        torch._foreach_copy_(self.parameters, self.master)
        self.optimizer.zero_grad()


@answers.right
class OneBuffer(Reference):
    """All copies are views of one flat float32 buffer."""

    def __init__(self, model, make_optimizer):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.flat = torch.cat([p.detach().flatten().float() for p in self.parameters])
        sizes = [p.numel() for p in self.parameters]
        self.master = [
            nn.Parameter(part.view_as(p))
            for part, p in zip(self.flat.split(sizes), self.parameters, strict=True)
        ]
        self.optimizer = make_optimizer(self.master)
