"""Answers to `fused_adam`."""

import torch

from parlab.answers import Answers

answers = Answers("fused_adam")
REFERENCE = answers.reference()
adam_group = answers.reference("adam_group")
adam_step = answers.reference("adam_step")

CLASS = "class FusedAdam(torch.optim.Optimizer):"
SETTINGS = "super().__init__(params, settings)"
LR = '            "lr": lr,\n'
STATES = "states = [self.state[p] for p in parameters]"
KEPT = "self.rates = {id(part): part['lr'] for part in self.param_groups}"
USED = 'used = [p for p in settings["params"] if p.grad is not None]'
UPDATE = "self.update([p for p in used if p.dtype == dtype], settings)"
BY_DTYPE = "for dtype in {p.dtype: None for p in used}:\n                " + UPDATE
MOMENT = 'state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)'
STEPS = '[int(state["step"]) for state in states]'
GRADIENTS = "[p.grad.contiguous() for p in parameters]"
PUT_BACK = "self.state[p][name] = value.to(p.device, torch.float32, copy=True)"
CALL = "with torch.enable_grad():\n                loss = closure()"
COUNT = 'state["step"] += 1'

answers.edit("wrong_defaults", "other_rate", ("lr=1e-3,", "lr=1e-2,"))
answers.edit(
    "raises",
    "parameters_used_up",
    (SETTINGS, "self.numbers = sum(p.numel() for p in params)\n        " + SETTINGS),
    says="empty parameter list",
)
answers.edit("launch_per_tensor", "one_by_one",
             (BY_DTYPE, "for p in used:\n                self.update([p], settings)"))  # fmt: skip
answers.edit(
    "launch_per_group",
    "all_dtypes_at_once",
    (BY_DTYPE, "if used:\n                self.update(used, settings)"),
)
answers.edit("moved_without_gradient", "zero_for_none",
             (USED, 'used = settings["params"]'),
             (GRADIENTS, "[torch.zeros_like(p) if p.grad is None else p.grad.contiguous() "
                         "for p in parameters]"))  # fmt: skip
answers.edit("counted_without_gradient", "one_count",
             (SETTINGS, SETTINGS + "\n        self.count = 0"),
             ("loss = None\n", "loss = None\n        self.count += 1\n"),
             (STEPS, "[self.count for state in states]"))  # fmt: skip
answers.edit("settings_kept", "rate_kept",
             (SETTINGS, SETTINGS + "\n        " + KEPT),
             ('settings["lr"],\n', "self.rates[id(settings)],\n"))  # fmt: skip
answers.edit("first_group_for_all", "first_group",
             (STATES, "settings = self.param_groups[0]\n        " + STATES))  # fmt: skip
answers.edit("gradient_strides", "as_they_lie", (GRADIENTS, "[p.grad for p in parameters]"))
answers.edit(
    "moments_of_half", "like_the_parameter", (MOMENT, MOMENT.replace(", dtype=torch.float32", ""))
)
answers.edit("moments_rounded", "as_the_base_loads", (PUT_BACK, "pass"))
answers.edit("closure_not_called", "no_closure", (CALL, "pass"))
answers.edit("closure_without_gradients", "without_gradients", (CALL, "loss = closure()"))
answers.edit(
    "closure_after_update",
    "closure_at_the_end",
    (
        "        if closure is not None:\n            with torch.enable_grad():\n"
        "                loss = closure()\n",
        "",
    ),
    (
        "        return loss",
        "        if closure is not None:\n            with torch.enable_grad():\n"
        "                loss = closure()\n        return loss",
    ),
)
answers.edit(
    "moments_of_half",
    "loaded_as_they_come",
    ("value.to(p.device, torch.float32, copy=True)", "value.to(p.device, copy=True)"),
)
answers.edit(
    "raises",
    "states_by_the_last_group_first",
    ("for part in self.param_groups for p", "for part in self.param_groups[::-1] for p"),
)
answers.edit("loss_lost", "nothing_returned", ("        return loss", "        return None"))
answers.edit(None, "step_not_a_tensor", ('state["step"] = torch.tensor(0.0)', 'state["step"] = 0'))
answers.edit(
    None,
    "step_of_integers",
    ('state["step"] = torch.tensor(0.0)', 'state["step"] = torch.tensor(0)'),
    says="one float32",
)
answers.edit(
    "gradient_replaced",
    "gradient_made_contiguous",
    (STATES, "for p in parameters:\n            p.grad = p.grad.contiguous()\n        " + STATES),
)
answers.edit(
    None,
    "rate_alone_is_read_anew",
    (
        SETTINGS,
        SETTINGS + "\n        self.first = {id(g): dict(g) for g in self.param_groups}",
    ),
    (STATES, STATES + "\n        settings = self.first[id(settings)] | {'lr': settings['lr']}"),
)
answers.edit(None, "counted_before", (STEPS, '[int(state["step"]) + 1 for state in states]'))


@answers.wrong("state_of_another")
class InOrder(REFERENCE):
    """States in the order of their numbers, as if each parameter had one."""

    def load_state_dict(self, state_dict):
        torch.optim.Optimizer.load_state_dict(self, state_dict)
        mine = [p for part in self.param_groups for p in part["params"]]
        for p, number in zip(mine, sorted(state_dict["state"]), strict=False):
            for name in ("exp_avg", "exp_avg_sq"):
                self.state[p][name] = state_dict["state"][number][name].float().clone()


@answers.wrong("not_an_optimizer")
class Plain:
    def __init__(self, params, lr=1e-3, **settings):
        self.param_groups = [{"params": list(params), "lr": lr} | settings]

    def step(self, closure=None):
        return closure and closure()


@answers.right
class OnTorch(torch.optim.Adam):
    """torch's own class, with another step."""

    def __init__(self, params, lr=1e-3, **settings):
        super().__init__(params, lr=lr, **settings)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure:
            with torch.enable_grad():
                loss = closure()
        for part in self.param_groups:
            used = [p for p in part["params"] if p.grad is not None]
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                self._of_dtype([p for p in used if p.dtype == dtype], part)
        return loss

    def _of_dtype(self, used, part):
        if not used:
            return
        for p in used:
            state = self.state[p]
            if "step" not in state:
                zeros = torch.zeros(2, *p.shape, device=p.device)
                state["step"], (state["exp_avg"], state["exp_avg_sq"]) = torch.zeros(()), zeros
            state["step"] += 1
        states = [self.state[p] for p in used]
        adam_group(
            used, [p.grad.clone(memory_format=torch.contiguous_format) for p in used],
            [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states],
            [int(s["step"].item()) for s in states], part["lr"], part["betas"], part["eps"],
            part["weight_decay"], part["decoupled_weight_decay"],
        )  # fmt: skip

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        mine = [p for part in self.param_groups for p in part["params"]]
        theirs = [n for part in state_dict["param_groups"] for n in part["params"]]
        for p, number in zip(mine, theirs, strict=True):
            for name in ("exp_avg", "exp_avg_sq"):
                if number in state_dict["state"]:
                    value = state_dict["state"][number][name]
                    self.state[p][name] = value.to(p.device).float().clone()


@answers.right
class StatesAtOnce(REFERENCE):
    """Adam's states exist from the beginning."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        for part in self.param_groups:
            for p in part["params"]:
                self.state[p]["step"] = torch.tensor(0.0)
                self.state[p]["exp_avg"] = torch.zeros(p.shape, device=p.device)
                self.state[p]["exp_avg_sq"] = torch.zeros(p.shape, device=p.device)


@answers.right
class ClosureFirst(REFERENCE):
    def step(self, closure=None):
        loss = closure() if closure else None
        super().step()
        return loss


@answers.right
class CastsNothing(REFERENCE):
    """Moments are kept aside while the base loads, and loaded after."""

    def load_state_dict(self, state_dict):
        moments = {
            n: {k: v.clone().float() for k, v in state.items() if k != "step"}
            for n, state in state_dict["state"].items()
        }
        torch.optim.Optimizer.load_state_dict(self, state_dict)
        place = 0
        for mine, theirs in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for p, number in zip(mine["params"], theirs["params"], strict=True):
                self.state[p].update(moments.get(number, {}))
                place += 1


@answers.right
class MoreArguments(REFERENCE):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, **more):
        more.setdefault("decoupled_weight_decay", False)
        super().__init__(params, lr, betas, eps, weight_decay, **more)
        self.calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)
