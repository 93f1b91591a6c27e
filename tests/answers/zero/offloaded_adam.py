"""Answers to `offloaded_adam`."""

import torch
from torch.optim.adam import adam

from parlab_staff.answers import Answers

answers = Answers("offloaded_adam")
Reference = answers.reference()

COUNT = "self.count += 1"
OWN_COUNT = "self.taken = getattr(self, 'taken', 0) + 1; self.count.fill_(self.taken)"
LERP = "mean.lerp_(gradient, 1 - beta_1)"
SQUARE = "square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)"
SQUARED = "square.mul_(beta_2).add_(gradient.square_(), alpha=1 - beta_2)"
MEAN, ROOT = "(mean / (1 - beta_1**t))", "(square / (1 - beta_2**t))"
UPDATE = "weights[part] -= update.to(weights.device)"
LOOP = "for start in range(0, weights.numel(), self.piece):"

for mistake, name, *edits in (
    ("count_lost", "count_in_the_object", COUNT, OWN_COUNT),
    (None, "count_each_piece", COUNT, "self.count += -(-self.mean.numel() // self.piece)"),
    ("not_in_the_file", "moment_not_written", LERP, f"mean = {LERP.replace('_(', '(')}"),
    (None, "not_corrected", ROOT, "square.clone()", MEAN, "mean.clone()"),
    ("last_piece", "whole_pieces", LOOP, LOOP.replace("l(),", "l() - self.piece + 1,")),
    ("all_in_memory", "one_piece", LOOP, "self.piece = weights.numel()\n        " + LOOP),
    (None, "betas_swapped", "(beta_1, beta_2), t", "(beta_2, beta_1), t"),
    (None, "eps_inside", ".sqrt_().add_(self.eps)", ".add_(self.eps).sqrt_()"),
    (None, "wrong_way", UPDATE, UPDATE.replace("-=", "+=")),
    ("argument_changed", "squared_in_place", SQUARE, SQUARED),
    (None, "new_memory", COUNT, f"{COUNT}; self.parameter.data = self.parameter.data.clone()"),
):
    answers.edit(mistake, name, *zip(edits[::2], edits[1::2], strict=True))


@answers.right
class InPlainArithmetic(Reference):
    def step(self):
        self.count.add_(1)
        t = float(self.count)
        b1, b2 = self.betas
        pieces = [x.split(self.piece) for x in (self.parameter.data, self.parameter.grad, self.mean,
                                                self.square)]  # fmt: skip
        for w, g, m, v in zip(*pieces, strict=True):
            m[:] = b1 * m + (1 - b1) * g
            v[:] = b2 * v + (1 - b2) * g * g
            w -= self.lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)) ** 0.5 + self.eps)


@answers.right
class AsTheLibraryComputes(Reference):
    """The corrections are folded into the step size."""

    def step(self):
        self.count[0] += 1
        t = int(self.count.item())
        b1, b2 = self.betas
        for i in range(0, self.mean.numel(), self.piece):
            g = self.parameter.grad[i : i + self.piece].cpu()
            m, v = self.mean[i : i + self.piece], self.square[i : i + self.piece]
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            below = v.sqrt().div_((1 - b2**t) ** 0.5).add_(self.eps)
            with torch.no_grad():
                section = self.parameter[i : i + self.piece]
                section.addcdiv_(m, below, value=-self.lr / (1 - b1**t))


@answers.right
class ByFunction(Reference):
    def step(self):
        steps = self.count
        for start in range(0, self.parameter.numel(), self.piece):
            i = slice(start, start + self.piece)
            adam(
                [self.parameter.data[i]], [self.parameter.grad[i]], [self.mean[i]],
                [self.square[i]], [], [steps[0].clone()], foreach=False, amsgrad=False,
                beta1=self.betas[0], beta2=self.betas[1], lr=self.lr, weight_decay=0.0,
                eps=self.eps, maximize=False,
            )  # fmt: skip
        steps += 1


@answers.right
class CountedAtTheEnd(Reference):
    def step(self):
        t = self.count.item() + 1
        b1, b2 = self.betas
        n = self.parameter.numel()
        for start in range(0, n, self.piece):
            part = slice(start, min(start + self.piece, n))
            g = self.parameter.grad[part]
            self.mean[part] = torch.lerp(self.mean[part], g, 1 - b1)
            self.square[part] = b2 * self.square[part] + (1 - b2) * g.square()
            step = self.mean[part] / (1 - b1**t)
            step /= (self.square[part] / (1 - b2**t)).sqrt() + self.eps
            self.parameter.data[part].sub_(step, alpha=self.lr)
        self.count.fill_(t)


@answers.right
class SmallerPieces(Reference):
    def step(self):
        self.piece = max(1, self.piece // 2)
        super().step()
        self.piece *= 2
