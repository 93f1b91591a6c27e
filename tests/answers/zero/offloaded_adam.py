"""Answers to `offloaded_adam`."""

import torch

from parlab.answers import Answers

answers = Answers("offloaded_adam")
Reference = answers.reference()

COUNT = "self.count += 1"
TIME = "t = self.betas, self.count.item()"
LERP = "mean.lerp_(gradient, 1 - beta_1)"
SQUARE = "square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)"
UPDATE = "weights[part] -= update.to(weights.device)"
LOOP = "for start in range(0, weights.numel(), self.piece):"

answers.edit(
    "count_lost",
    "count_in_the_object",
    (COUNT, "self.taken = getattr(self, 'taken', 0) + 1\n        self.count.fill_(self.taken)"),
)
answers.edit("count_lost", "never_counted", (COUNT, "pass"), (TIME, "t = self.betas, 1"))
answers.edit(
    "count_each_piece",
    "count_each_piece",
    (COUNT, "self.count += -(-self.parameter.numel() // self.piece)"),
)
answers.edit(
    "not_in_the_file", "moment_not_written", (LERP, "mean = mean.lerp(gradient, 1 - beta_1)")
)
answers.edit(
    "not_corrected",
    "not_corrected",
    ("(square / (1 - beta_2**t))", "square.clone()"),
    ("(mean / (1 - beta_1**t))", "mean.clone()"),
)
answers.edit(
    "last_piece",
    "whole_pieces_only",
    (LOOP, "for start in range(0, weights.numel() - self.piece + 1, self.piece):"),
)
answers.edit("all_in_memory", "one_piece", (LOOP, "self.piece = weights.numel()\n        " + LOOP))
answers.edit(None, "moments_swapped", (SQUARE, SQUARE.replace("beta_2", "beta_1")))
answers.edit(
    "eps_inside", "eps_inside_the_root", (".sqrt_().add_(self.eps)", ".add_(self.eps).sqrt_()")
)


answers.edit("wrong_way", "wrong_way", (UPDATE, UPDATE.replace("-=", "+=")))
answers.edit(
    "argument_changed",
    "squared_in_place",
    (SQUARE, "square.mul_(beta_2).add_(gradient.square_(), alpha=1 - beta_2)"),
)
answers.edit("not_a_number", "not_squared", (SQUARE, "square.lerp_(gradient, 1 - beta_2)"))
answers.edit(
    "betas_swapped", "betas_swapped", ("(beta_1, beta_2), t = self", "(beta_2, beta_1), t = self")
)


@answers.wrong("argument_changed")
class GradientFreed(Reference):
    def step(self):
        super().step()
        self.parameter.grad = None


@answers.wrong("new_memory")
class NewWeights(Reference):
    def step(self):
        self.parameter.data = self.parameter.data.clone()
        super().step()


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
                here = self.parameter[i : i + self.piece]
                here.addcdiv_(m, below, value=-self.lr / (1 - b1**t))


@answers.right
class ByFunction(Reference):
    def step(self):
        from torch.optim.adam import adam

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
