"""Answers to `loss_scaler`."""

import math

import torch

from parlab.answers import Answers

answers = Answers("loss_scaler")
Reference = answers.reference()

DIVIDE = "gradient /= self.scale"
FINITE = "finite = finite and bool(torch.isfinite(gradient).all())"
BACK = "self.scale *= self.backoff_factor\n            self.good_steps = 0"
COUNT = "self.good_steps += 1"
WHEN = "if self.good_steps == self.growth_interval:"
GROWN = "grown = self.scale * self.growth_factor"
BOUND = "self.scale = grown if grown <= torch.finfo(torch.float32).max else self.scale"
AGAIN = BOUND + "\n            self.good_steps = 0"

answers.edit("never_grows", "never_grows", (BOUND, "pass"))
answers.edit("never_shrinks", "never_shrinks", (BACK, "self.good_steps = 0"))
answers.edit(
    "growth_factor_alone",
    "divided_by_growth",
    (BACK, BACK.replace("*= self.backoff_factor", "/= self.growth_factor")),
)
answers.edit(
    "updated_in_unscale",
    "unscale_updates_too",
    ("return not finite", "self.update(not finite)\n        return not finite"),
)
answers.edit(
    None,
    "overflow_takes_one_off",
    (BACK, BACK.replace("good_steps = 0", "good_steps -= 1")),
    says="the count of good steps is",
)
answers.edit(
    None,
    "overflow_counts",
    (BACK, BACK.replace("good_steps = 0", "good_steps = 1")),
    says="the count of good steps is 1",
)
answers.edit("grows_each_step", "every_step", (WHEN, "if True:"))
answers.edit("counts_on_after_overflow", "row_goes_on", (BACK, "self.scale *= self.backoff_factor"))
answers.edit(
    "counts_on_after_growth",
    "count_kept",
    (WHEN, "if self.good_steps >= self.growth_interval:"),
    (AGAIN, BOUND),
)
answers.edit("grows_a_step_late", "more_than", (WHEN, WHEN.replace("==", ">")))
answers.edit(
    "grows_a_step_early", "one_early", (WHEN, "if self.good_steps >= self.growth_interval - 1:")
)
answers.edit(
    "factors_swapped",
    "swapped",
    (BACK, BACK.replace("backoff", "growth")),
    (GROWN, GROWN.replace("growth", "backoff")),
)
answers.edit(
    "factors_of_two",
    "two_and_a_half",
    (BACK, BACK.replace("self.backoff_factor", "0.5")),
    (GROWN, "grown = 2 * self.scale"),
)
answers.edit("grows_to_infinity", "no_end", (BOUND, "self.scale = grown"))
answers.edit(
    "limited_below",
    "at_least_one",
    (BACK, BACK.replace("*= self.backoff_factor", "= max(1.0, self.scale * self.backoff_factor)")),
)
answers.edit(
    "nan_not_seen",
    "infinities_only",
    (FINITE, "finite = finite and not bool(torch.isinf(gradient).any())"),
)
answers.edit(
    "infinity_not_seen",
    "nan_only",
    (FINITE, "finite = finite and not bool(torch.isnan(gradient).any())"),
)
answers.edit(
    "minus_infinity_not_seen",
    "upward_only",
    (FINITE, "finite = finite and bool((gradient < math.inf).all())"),
)
answers.edit(
    "first_tensor_only", "last_one_wins", (FINITE, "finite = bool(torch.isfinite(gradient).all())")
)
answers.edit("not_in_place", "new_tensors", (DIVIDE, "gradient = gradient / self.scale"))
answers.edit("multiplied", "multiplied", (DIVIDE, "gradient *= self.scale"))
answers.edit("returns_none", "no_return", ("return not finite", "pass"))
answers.edit(
    "limited_below",
    "normal_halves",
    (
        BACK,
        BACK.replace("*= self.backoff_factor", "= max(2**-14, self.scale * self.backoff_factor)"),
    ),
)
answers.edit("limited_above", "halves", (BOUND, BOUND.replace("float32", "float16")))
answers.edit(
    "cut_to_the_largest",
    "clamped",
    (BOUND, "self.scale = min(grown, torch.finfo(torch.float32).max)"),
)
answers.edit(None, "not_the_largest_itself", (BOUND, BOUND.replace("<=", "<")))
answers.edit(
    None, "opposite", ("return not finite", "return finite"), says="where all numbers are finite"
)
answers.edit(
    None, "new_memory", (DIVIDE, "gradient.data = gradient / self.scale"), says="other memory"
)
answers.edit(
    "overflow_hidden",
    "cleaned",
    (FINITE, FINITE + "\n            gradient.nan_to_num_(0.0, 0.0, 0.0)"),
)
answers.edit(
    "finite_taken_for_overflow",
    "sum_in_float32",
    (FINITE, "finite = finite and math.isfinite(gradient.sum())"),
)
answers.edit(
    "finite_taken_for_overflow",
    "norm",
    (FINITE, "finite = finite and math.isfinite(gradient.norm())"),
)


@answers.wrong("rest_left_scaled")
class StopsAtTheFirst(Reference):
    def unscale(self, gradients):
        for gradient in gradients:
            if not torch.isfinite(gradient).all():
                return True
            gradient /= self.scale
        return False


@answers.wrong(None)
class CountsElsewhere(Reference):
    """Not where the state takes it from."""

    def update(self, overflow):
        count = getattr(self, "count", 0)
        self.good_steps = count
        super().update(overflow)
        self.count, self.good_steps = self.good_steps, 0


@answers.right
class ByTheSum(Reference):
    """A sum of absolute numbers is finite where all are, in float64."""

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
    """A tensor of one bool is as good as a bool."""

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
        torch._amp_update_scale_(
            scale,
            count,
            torch.tensor(float(overflow)),
            self.growth_factor,
            self.backoff_factor,
            self.growth_interval,
        )
        self.scale, self.good_steps = scale.item(), int(count)
