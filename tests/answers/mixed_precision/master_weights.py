"""Answers to `master_weights`."""

import torch
from torch import nn

from parlab.answers import Answers

answers = Answers("master_weights")
Reference = answers.reference()

MASTER = "self.master = [nn.Parameter(p.detach().float()) for p in self.parameters]"
OPTIMIZER = "self.optimizer = make_optimizer(self.master)"
MOVE = "copy.grad = None if parameter.grad is None else parameter.grad.float()"
FREE = "parameter.grad = None"
STEP = "self.optimizer.step()"
BACK = "parameter.detach().copy_(copy.detach())"

answers.edit(
    "copies_of_16_bits",
    "copies_of_16_bits",
    (MASTER, MASTER.replace("p.detach().float()", "p.detach().clone()")),
    (MOVE, MOVE.replace(".float()", ".clone()")),
)
answers.edit(
    "optimizer_of_parameters", "model_s_parameters", (OPTIMIZER, "self.optimizer = "
    "make_optimizer(self.parameters)"),
)  # fmt: skip
answers.edit("not_copied_back", "not_copied_back", (BACK, "pass"))
answers.edit(
    "not_copied_back", "copied_before_the_step", (STEP, "pass"), (BACK, BACK + "\n        " + STEP)
)
answers.edit("gradients_not_moved", "forgotten", (MOVE, "pass"))
answers.edit("no_step", "zeroed_first", (STEP, "self.optimizer.zero_grad()\n        " + STEP))
answers.edit("no_step", "step_forgotten", (STEP, "pass"))
answers.edit(
    "gradient_invented",
    "zeros_for_none",
    (MOVE, MOVE.replace("= None if", "= torch.zeros_like(copy) if")),
)
answers.edit("gradients_left", "not_freed", ("            " + FREE, "            pass"))
answers.edit("new_memory", "data_replaced", (BACK, "parameter.data = copy.detach().to(parameter)"))
answers.edit(
    None,
    "tensors",
    (MASTER, "self.master = [p.detach().float().requires_grad_() for p in self.parameters]"),
    says="nn.Parameter",
)
answers.edit(
    "not_a_number",
    "copies_through_float16",
    (MASTER, MASTER.replace("p.detach()", "p.detach().half()")),
)
answers.edit(None, "no_optimizer_yet", (OPTIMIZER, "self.optimizer = None"), says="self.optimizer")
answers.edit(
    "wrong_dtype",
    "model_cast",
    (OPTIMIZER, OPTIMIZER + "\n        model.half()"),
    says="self.parameters",
)
answers.edit(
    None,
    "parameters_frozen",
    (OPTIMIZER, OPTIMIZER + "\n        model.requires_grad_(False)"),
    says="does not require",
)
answers.edit(
    "overflow_hidden", "cleaned", (MOVE, MOVE.replace(".float()", ".float().nan_to_num()"))
)
answers.edit(
    "not_a_number", "gradients_through_float16", (MOVE, MOVE.replace(".float()", ".half().float()"))
)
answers.edit("parameters_in_float32", "no_rounding", (BACK, "parameter.data = copy.data"))
answers.edit("rounded_through_float16", "through_float16", (BACK, BACK.replace(
    "copy.detach()", "copy.detach().half()")),
)  # fmt: skip


@answers.wrong("cut_off")
class CutOff(Reference):
    def step(self):
        self.optimizer.step()
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            mask = -(2**16) if parameter.dtype == torch.bfloat16 else -(2**13)
            bits = copy.detach().view(torch.int32) & mask
            parameter.detach().copy_(bits.view(torch.float32))


@answers.wrong("update_rounded")
class AddsTheUpdate(Reference):
    def step(self):
        old = [copy.detach().clone() for copy in self.master]
        self.optimizer.step()
        for parameter, copy, before in zip(self.parameters, self.master, old, strict=True):
            parameter.detach().add_((copy.detach() - before).to(parameter.dtype))


answers.edit("raises", "gradient_of_16_bits", (MOVE, MOVE.replace(".float()", "")))


@answers.wrong("gradient_of_the_step_before")
class KeepsTheOldOne(Reference):
    def collect(self):
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            if parameter.grad is not None:
                copy.grad = parameter.grad.float()
            parameter.grad = None


@answers.wrong("gradients_add_up")
class AddsUp(Reference):
    def collect(self):
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            if parameter.grad is None:
                copy.grad = None
            elif copy.grad is None:
                copy.grad = parameter.grad.float()
            else:
                copy.grad += parameter.grad
            parameter.grad = None


@answers.wrong("rebuilt_each_step")
class RebuiltEachStep(Reference):
    """The copies come from the rounded weights again."""

    def step(self):
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            copy.data.copy_(parameter.detach())
        super().step()


@answers.wrong("rebuilt_each_step")
class RoundedAsWell(Reference):
    """The copies are rounded with the weights, which comes to the same."""

    def step(self):
        super().step()
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            copy.data.copy_(parameter.detach())


@answers.wrong("gradients_of_16_bits")
class AnyDtype(Reference):
    """Torch is told not to mind."""

    def collect(self):
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            copy.grad_dtype = None
            copy.grad, parameter.grad = parameter.grad, None


@answers.wrong(None)
class DecaysOnlyOne(Reference):
    """Drops a parameter: its copy never moves."""

    def __init__(self, model, make_optimizer):
        super().__init__(model, make_optimizer)
        self.optimizer = make_optimizer(self.master[1:])


@answers.right
class ByList(Reference):
    """Copies made of Python's numbers."""

    def __init__(self, model, make_optimizer):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.master = [
            nn.Parameter(torch.tensor(p.tolist(), dtype=torch.float32)) for p in self.parameters
        ]
        self.optimizer = make_optimizer(self.master)


@answers.right
class InPlace(Reference):
    """The copies' gradients have memory of their own, which is used again."""

    def __init__(self, model, make_optimizer):
        super().__init__(model, make_optimizer)
        self.gradients = [torch.empty_like(copy) for copy in self.master]

    def collect(self):
        for parameter, copy, memory in zip(
            self.parameters, self.master, self.gradients, strict=True
        ):
            if parameter.grad is None:
                copy.grad = None
            else:
                copy.grad = memory.copy_(parameter.grad)
                parameter.grad = None


@answers.right
class Foreach(Reference):
    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        torch._foreach_copy_(self.parameters, self.master)
        self.optimizer.zero_grad()


@answers.right
class ThroughData(Reference):
    def step(self):
        self.optimizer.step()
        for i, parameter in enumerate(self.parameters):
            parameter.data[...] = self.master[i].data


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
