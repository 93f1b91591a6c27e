"""Answers to `fused_adam`."""

import torch

from parlab_staff.answers import Answers

answers = Answers("fused_adam")
reference = answers.reference()

SETTINGS = "super().__init__(params, settings)"
STATES = "states = [self.state[p] for p in parameters]"
UPDATE = "self.update([p for p in used if p.dtype == dtype], settings)"
BY_DTYPE = f"for dtype in {{p.dtype: None for p in used}}:\n                {UPDATE}"
MOMENT = 'state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)'
STEPS = '[int(state["step"]) for state in states]'
GRADIENTS = "[p.grad.contiguous() for p in parameters]"
PUT_BACK = "self.state[p][name] = value.to(p.device, torch.float32, copy=True)"
CALL = "with torch.enable_grad():\n                loss = closure()"
WITH_CLOSURE = f"        if closure is not None:\n            {CALL}\n"
RETURN = "        return loss"
FIRST = "self.first = {id(g): dict(g) for g in self.param_groups}"
KEEP = f"{SETTINGS}\n        {FIRST}"
OLD = f"{STATES}\n        settings = self.first[id(settings)]"
USED_UP = f"self.numbers = sum(p.numel() for p in params)\n        {SETTINGS}"
REPLACED = f"for p in parameters:\n            p.grad = p.grad.contiguous()\n        {STATES}"
COUNT = (
    (SETTINGS, f"{SETTINGS}\n        self.count = 0"),
    ("loss = None\n", "loss = None\n        self.count += 1\n"),
    (STEPS, "[self.count for state in states]"),
)
AT_THE_END = (WITH_CLOSURE, ""), (RETURN, WITH_CLOSURE + RETURN)
ONE_BY_ONE = "for p in used:\n                self.update([p], settings)"
REVERSED = ("for part in self.param_groups for p", "for part in self.param_groups[::-1] for p")

answers.edit(None, "other_rate", ("lr=1e-3,", "lr=1e-2,"), says="the defaults {'lr'")
answers.edit("raises", "parameters_used_up", (SETTINGS, USED_UP), says="empty parameter list")
answers.edit(None, "one_by_one", (BY_DTYPE, ONE_BY_ONE))
answers.edit("counted_without_gradient", "one_count", *COUNT)
answers.edit(None, "first_settings", (SETTINGS, KEEP), (STATES, OLD))
answers.edit("gradient_strides", "as_they_lie", (GRADIENTS, "[p.grad for p in parameters]"))
answers.edit(
    "moments_of_half", "like_the_parameter", (MOMENT, MOMENT.replace(", dtype=torch.float32", ""))
)
answers.edit("moments_of_half", "as_loaded", (PUT_BACK, PUT_BACK.replace("torch.float32, ", "")))
answers.edit(None, "step_in_a_list", ("torch.tensor(0.0)", "torch.zeros(1)"), says="shape ()")
answers.edit(None, "step_is_a_number", ("torch.tensor(0.0)", "0.0"), says="expected a tensor")
answers.edit(
    None, "flat_moments", (MOMENT, MOMENT.replace("(p,", "(p.flatten(),")), says="has shape"
)
answers.edit("moments_rounded", "as_the_base_loads", (PUT_BACK, "pass"))
answers.edit(None, "no_closure", (CALL, "pass"), says="0 times")
answers.edit(None, "without_gradients", (CALL, "loss = closure()"))
answers.edit(None, "closure_at_the_end", *AT_THE_END, says="before you look")
answers.edit(None, "last_group_first", REVERSED, says="after loading")
answers.edit(None, "gradient_replaced", (STATES, REPLACED), says="another tensor")


@answers.wrong(None, says="never had a gradient")
class InOrder(reference):
    """States in the order of their numbers, as if each parameter had one."""

    def load_state_dict(self, state_dict):
        torch.optim.Optimizer.load_state_dict(self, state_dict)
        parameters = [p for part in self.param_groups for p in part["params"]]
        for p, number in zip(parameters, sorted(state_dict["state"]), strict=False):
            for name in ("exp_avg", "exp_avg_sq"):
                self.state[p][name] = state_dict["state"][number][name].float().clone()


@answers.wrong(None, says="has no 'step'")
class StartsAgain(reference):
    """Without the number of steps, as if only the moments were the state."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state.pop("step", None)


@answers.wrong(None, says="subclass")
class Plain:
    def __init__(self, params, **settings):
        self.param_groups = [{"params": list(params)} | settings]


COPIES = "[p.grad.clone(memory_format=torch.contiguous_format) for p in parameters]"
answers.right_edit("gradients_copied", (GRADIENTS, COPIES))


@answers.right
class OnTorch(torch.optim.Adam):
    """torch's own class, with another step."""

    step, update = reference.step, reference.update

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        parameters = [p for part in self.param_groups for p in part["params"]]
        numbers = [n for part in state_dict["param_groups"] for n in part["params"]]
        for p, number in zip(parameters, numbers, strict=True):
            for name in ("exp_avg", "exp_avg_sq") if number in state_dict["state"] else ():
                self.state[p][name] = state_dict["state"][number][name].float().clone()


@answers.right
class StatesAtOnce(reference):
    """Adam's states exist from the beginning."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        for p in (p for part in self.param_groups for p in part["params"]):
            self.state[p]["step"] = torch.tensor(0.0)
            for name in ("exp_avg", "exp_avg_sq"):
                self.state[p][name] = torch.zeros(p.shape, device=p.device)


@answers.right
class ClosureFirst(reference):
    def step(self, closure=None):
        loss = closure() if closure else None
        super().step()
        return loss


@answers.right
class MoreArguments(reference):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, **more):
        more.setdefault("decoupled_weight_decay", False)
        super().__init__(params, lr, betas, eps, weight_decay, **more)
