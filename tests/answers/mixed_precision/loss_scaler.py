"""Answers to `loss_scaler`."""

import math

import torch

from parlab_staff.answers import Answers

answers = Answers("loss_scaler")
Reference = answers.reference()

DIVIDE = "gradient /= self.scale"
FINITE = "finite = finite and bool(torch.isfinite(gradient).all())"
FINDS = "finite = finite and {}"
UNSCALED = "return not finite"
BACK = "self.scale *= self.backoff_factor\n            self.good_steps = 0"
SHRINK = "self.scale *= self.backoff_factor"
WHEN = "if self.good_steps == self.growth_interval:"
GROWN = "grown = self.scale * self.growth_factor"
BOUND = "self.scale = grown if grown <= torch.finfo(torch.float32).max else self.scale"
AGAIN = BOUND + "\n            self.good_steps = 0"

for mistake, name, old, new in (
    (None, "never_grows", BOUND, "pass"),
    (None, "never_shrinks", BACK, "self.good_steps = 0"),
    (None, "every_step", WHEN, "if True:"),
    (None, "more_than", WHEN, WHEN.replace("==", ">")),
    ("counts_on_after_overflow", "row_goes_on", BACK, SHRINK),
    ("grows_to_infinity", "no_end", BOUND, "self.scale = grown"),
    (
        "counts_on_after_overflow",
        "overflow_takes_one_off",
        BACK,
        BACK.replace("good_steps = 0", "good_steps -= 1"),
    ),
    (None, "one_early", WHEN, WHEN.replace("== self", ">= -1 + self")),
    (None, "at_least_one", SHRINK, "self.scale = max(1.0, self.scale * self.backoff_factor)"),
    (None, "clamped", BOUND, "self.scale = min(grown, torch.finfo(torch.float32).max)"),
    (None, "not_the_largest_itself", BOUND, BOUND.replace("<=", "<")),
    ("overflow_missed", "infinities_only", FINITE, FINDS.format("not gradient.isinf().any()")),
    ("overflow_missed", "nan_only", FINITE, FINDS.format("not gradient.isnan().any()")),
    ("overflow_missed", "upward_only", FINITE, FINDS.format("bool((gradient < math.inf).all())")),
    ("overflow_missed", "last_one_wins", FINITE, FINITE.replace("finite and ", "")),
    (None, "sum_in_float32", FINITE, FINDS.format("math.isfinite(gradient.sum())")),
    ("not_in_place", "new_tensors", DIVIDE, "gradient = gradient / self.scale"),
    (None, "multiplied", DIVIDE, "gradient *= self.scale"),
    ("not_in_place", "new_memory", DIVIDE, "gradient.data = gradient / self.scale"),
    (None, "cleaned", FINITE, FINITE + "\n            gradient.nan_to_num_(0.0, 0.0, 0.0)"),
    (None, "unscale_updates_too", UNSCALED, "self.update(not finite)\n        return not finite"),
    ("returns_none", "no_return", UNSCALED, "pass"),
):
    answers.edit(mistake, name, (old, new))
answers.edit(
    None,
    "a_flag_for_each",
    ("finite = True\n", "finite = []\n"),
    (FINITE, "finite.append(bool(torch.isfinite(gradient).all()))"),
    (UNSCALED, "return [not one for one in finite]"),
    says="[False, False, False], expected True or False",
)
answers.edit(
    None, "count_kept", (WHEN, WHEN.replace("==", ">=")), (AGAIN, BOUND), says="after step 3"
)
answers.edit(
    None,
    "two_and_a_half",
    (BACK, BACK.replace("self.backoff_factor", "0.5")),
    (GROWN, "grown = 2 * self.scale"),
    says="is 2.0, expected",
)


@answers.wrong("not_in_place")
class StopsAtTheFirst(Reference):
    def unscale(self, gradients):
        for gradient in gradients:
            if not torch.isfinite(gradient).all():
                return True
            gradient /= self.scale
        return False


@answers.right
class ByTheSum(Reference):
    """A sum of absolute values in float64 is finite if all of them are."""

    def unscale(self, gradients):
        torch._foreach_div_(gradients, self.scale)
        total = sum(float(g.double().abs().sum()) for g in gradients)
        return math.isinf(total) or math.isnan(total)


@answers.right
class LooksFirst(Reference):
    def unscale(self, gradients):
        bad = any(bool(torch.isinf(g).any() or torch.isnan(g).any()) for g in gradients)
        for gradient in gradients:
            gradient.mul_(1 / self.scale)
        return bad


@answers.right
class Tensors(Reference):
    """A tensor of one bool counts as a bool."""

    def unscale(self, gradients):
        found = torch.zeros((), dtype=torch.bool)
        for gradient in gradients:
            found |= ~gradient.isfinite().all()
            gradient.copy_(gradient / self.scale)
        return found


@answers.right
class CountsDown(Reference):
    def update(self, overflow):
        left = self.growth_interval - self.good_steps - (not overflow)
        if overflow:
            self.scale = self.scale * self.backoff_factor
        elif left == 0 and self.scale * self.growth_factor < 2.0**128:
            self.scale = self.growth_factor * self.scale
        self.good_steps = 0 if overflow or left == 0 else self.good_steps + 1


@answers.right
class WithTheLibrarysOperator(Reference):
    def update(self, overflow):
        scale = torch.tensor(self.scale, dtype=torch.float32)
        count = torch.tensor(self.good_steps, dtype=torch.int32)
        factors = self.growth_factor, self.backoff_factor, self.growth_interval
        torch._amp_update_scale_(scale, count, torch.tensor(float(overflow)), *factors)
        self.scale, self.good_steps = scale.item(), int(count)
