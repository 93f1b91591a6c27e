# %% [markdown]
# # Lab 06: Mixed precision
#
# Sixteen bits take half the memory and half the time on the network, and a GPU multiplies them many
# times as fast. They also have a smallest number, a largest, and gaps. You take a 16-bit float to
# pieces and put it together again, see which numbers of a training run it cannot hold, and build
# the two remedies: master weights and loss scaling. Then on several ranks, where **all must agree
# on which steps to skip**.
#
# | | |
# |---|---|
# | **You will be able to** | read and write a half bit by bit; predict which updates and gradients vanish; train 16-bit weights with master weights and a loss that finds its scale; reduce in 16 bits without overflow; skip a step on all ranks or none; shard the master weights as ZeRO does; say what mixed precision saves |
# | **Time** | 125 minutes |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or the knowledge of what a rank and an all-reduce are. No GPU |
# | **Background** | [chapter 06](../book/06_mixed_precision.md) of the book explains what you build here |
#
# Start the ranks: four processes, each with a Python of its own. Cells that begin with `%%px` run
# on all of them, other cells in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models, plots
from parlab.checks import mixed_precision as check
from parlab.data import mnist, text
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, `use_reference("its_name")` in a `%%px` cell puts a solution in
# its place, and you go on.
#
# # Part A: sixteen bits
#
# ## 1. Read a half
#
# *Difficulty 2/5, 10 minutes.*
#
# A `torch.float16`, a *half*, is 16 bits: one for the sign, five for the exponent $e$, ten for the
# mantissa $m$, in this order from the highest bit. Read as integers, they stand for
#
# | exponent $e$ | value | |
# |---|---|---|
# | 1 to 30 | $\pm\,2^{\,e-15} \cdot (1 + m/1024)$ | normal: a leading 1 that is not stored |
# | 0 | $\pm\,2^{-14} \cdot m/1024$ | subnormal, and the two zeros |
# | 31 | $\pm\infty$ where $m$ is 0, else NaN | |
#
# Take the bits, an integer from 0 to 65,535, and give the number. All of them have exactly one:
# −0.0 is not 0.0, though the two compare as equal. A NaN is any NaN. Work with Python's own
# integers and floats, which hold every half exactly, and `math`: no NumPy, no torch, no `struct`.
#
# **Predict**: what is the largest half, the smallest normal one, the smallest above zero?
#
# <details><summary>Hint 1</summary>
#
# `bits >> 15` is the sign, `bits >> 10 & 31` the exponent, `bits & 1023` the mantissa.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `math.ldexp(x, n)` is x times 2ⁿ, `-0.0` is a float like others, and `-1 * 0.0` gives it.
# </details>


# %% tags=["exercise"] exercise="decode_half"
# %%px
def decode_half(bits: int) -> float:
    """The number that the 16 bits of a float16 stand for."""
    # BEGIN SOLUTION
    sign = -1.0 if bits >> 15 else 1.0
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, -24)
    return sign * math.ldexp(1024 + mantissa, exponent - 25)
    # END SOLUTION


# %% tags=["check"] exercise="decode_half" points=2
# %%px --timeout 20
check.decode_half(decode_half)

# %% tags=["hidden-check"] exercise="decode_half" points=1
# %%px --timeout 20
check.show_values(
    values=[
        str(float(decode_half(bits)))
        for bits in [rank << 14, 1, 0x83FF, 0x400, 0x3555, 0xFBFF, 0x8000, 0x7C00, 0xFC00, 0x7C01]
    ],
    signs=[math.copysign(1.0, decode_half(bits)) for bits in (0, 0x8000, 0x7C00, 0xFC00)],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 65,504: exponent 30 and a full mantissa, $2^{15} \cdot (2 - 2^{-10})$. The smallest normal one is
# $2^{-14}$, about 6.1·10⁻⁵. The smallest above zero is $2^{-24}$, about 6.0·10⁻⁸. A float32 has
# eight bits of exponent: its normal numbers go from 1.2·10⁻³⁸ to 3.4·10³⁸, and so do a bfloat16's,
# which has eight as well.
# </details>
#
# ## 2. Write a half
#
# *Difficulty 3/5, 15 minutes.*
#
# Now the other way: the half that is nearest to a number. That is what happens each time a float32
# becomes a float16, and each time two of them are added.
#
# - Of two halves that are equally near, take the one whose last bit is 0: *round to nearest even*.
# - Rounding up may carry: from one exponent into the next, from subnormal to normal, from the
#   largest half to infinity.
# - What is nearer to 65,536, which no half holds, than to 65,504 becomes infinity, and so does what
#   is halfway.
# - What is nearer to zero than to the smallest subnormal becomes zero; it keeps its sign.
# - An infinity stays one; of a NaN, only that it is one.
#
# The value is a Python float, so it has 53 bits of mantissa: round it once, straight to the half.
# Again without NumPy, torch and `struct`.
#
# **Predict**: 2049 is not a half. Which one does it become, and which does 2051?
#
# <details><summary>Hint 1</summary>
#
# `math.frexp(x)` gives (f, n) with x = f·2ⁿ and 0.5 ≤ f < 1, and (0, 0) for zero. Halves near x
# are multiples of 2ⁿ⁻¹¹, and never of less than 2⁻²⁴. How many of these steps is x?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Python's `round(x)` rounds to the nearest integer, halves to even. The bits of positive halves are
# in order: the next larger half has the next larger bits. So with x = steps · 2ᵏ, the bits are
# (k + 24) · 1024 + steps, and every carry is right by itself.
# </details>


# %% tags=["exercise"] exercise="encode_half"
# %%px
def encode_half(value: float) -> int:
    """The 16 bits of the float16 nearest to `value`; of two, of the one whose last bit is 0."""
    # BEGIN SOLUTION
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    size = abs(value)
    if math.isnan(size):
        return sign | 0x7E00
    if size >= 65520:
        return sign | 0x7C00
    step = max(math.frexp(size)[1] - 11, -24) if size else -24
    steps = round(math.ldexp(size, -step))
    return sign | (step + 24) * 1024 + steps
    # END SOLUTION


# %% tags=["check"] exercise="encode_half" points=3
# %%px --timeout 30
check.encode_half(encode_half)

# %% tags=["hidden-check"] exercise="encode_half" points=1
# %%px --timeout 20
check.show_values(
    bits=[encode_half(x) for x in [1 / 3 + rank, -1e-5 * rank, 4097.0, 65519.0, -7e4, 3e-8, -2e-8]],
    edges=[encode_half(x) for x in [65520.0, -math.inf, -0.0, 4099.0, 2.0**-14 - 2.0**-27]],
    close=[encode_half(1 + 2.0**-11 + sign * 2.0**-40) for sign in (-1, 0, 1)],
    nan=[encode_half(math.nan) & 0x7C00, encode_half(math.nan) & 1023 > 0],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# From 2048 to 4096 halves are two apart. 2049 and 2051 are both halfway: 2049 becomes 2048 and 2051
# becomes 2052, the ones with an even last bit. On average over many sums that favours neither
# direction.
# </details>
#
# Your half beside torch's, on random numbers of all sizes:

# %%
# %%px --timeout 60
numbers = torch.randn(20_000, dtype=torch.float64) * torch.exp2(torch.randint(-30, 18, (20_000,)))
numbers = numbers.float()  # torch's way to a half begins at a float32
ours = torch.tensor([encode_half(x) for x in numbers.tolist()], dtype=torch.uint16)
same_bits = torch.equal(ours, numbers.half().view(torch.uint16))
if rank == 0:
    print(f"the bits are torch's: {same_bits}")

# %% [markdown]
# ## 3. Which updates vanish?
#
# *Difficulty 2/5, 5 minutes.*
#
# A weight and its update are both halves, and far from zero each. Their sum is rounded too, to the
# halves near the *weight*. If the update is too small beside it, the sum is the weight again: the
# step was for nothing, and so are all that follow.
#
# `eps` is the gap from 1 to the next larger number: $2^{-10}$ for float16, $2^{-7}$ for bfloat16.
# **Predict in numbers**, for a positive weight far from the ends of the format:
#
# - `added`: the largest update $u$ for which weight + $u$ gives the weight again;
# - `subtracted`: the same for weight − $u$. Look closely at what lies below a power of two;
# - `counter`: begin at 0 and add 1 again and again. At which number does it stop?
#
# The check does it in torch, and compares. (A percent more or less is right: whether a tie vanishes
# depends on the weight's last bit.)


# %% tags=["exercise"] exercise="predict_vanishing"
# %%px
def predict_vanishing(weight: float, eps: float) -> dict[str, float]:
    """The largest updates that change nothing, `added` and `subtracted`, and where a `counter` stops.

    `weight` is a number of the format whose gap above 1 is `eps`.
    """
    # BEGIN SOLUTION
    fraction, exponent = math.frexp(weight)
    gap = math.ldexp(eps, exponent - 1)
    below = gap / 2 if fraction == 0.5 else gap
    return {"added": gap / 2, "subtracted": below / 2, "counter": 2 / eps}
    # END SOLUTION


# %% tags=["check"] exercise="predict_vanishing" points=2
# %%px --timeout 20
check.predict_vanishing(predict_vanishing)

# %% tags=["hidden-check"] exercise="predict_vanishing" points=1
# %%px --timeout 20
check.show_values(
    predicted=[
        [round(math.log2(x), 1) for _, x in sorted(predict_vanishing(weight, eps).items())]
        for weight in (1.0, 0.5, 1024.0, 0.375, 5.0 + rank)
        for eps in (2**-10, 2**-7)
    ]
)

# %% [markdown]
# Weights of 1, half and 1024 that take a thousand steps upward, of the size that you say vanishes,
# and of 1.01 times that:

# %%
# %%px
for weight in (1.0, 0.5, 1024.0):
    for dtype in (torch.float16, torch.bfloat16):
        limit = predict_vanishing(weight, torch.finfo(dtype).eps)["added"]
        ends = []
        for size in (limit, 1.01 * limit):
            w, update = torch.tensor([weight, size], dtype=dtype)
            for _ in range(1000):
                w = w + update
            ends.append(w.item())
        if rank == 0:
            print(
                f"{weight:>6} as {str(dtype)[6:]:8}: {ends[0]:g} and {ends[1]:g}, where "
                f"{weight + 1000 * limit:.4g} and {weight + 1010 * limit:.4g} are right"
            )

# %% [markdown]
# A step a hundredth longer, and the float16 goes twice as far as it should: each step is rounded up
# to a whole gap. The bfloat16 stops at the next power of two, where the gap doubles. A weight of 16
# bits cannot take small steps, whatever the optimizer does.

# %% [markdown]
# # Part B: two remedies
#
# ## 4. How small gradients are
#
# *Difficulty 2/5, 10 minutes.*
#
# What becomes of a gradient in 16 bits depends on its exponent alone: the $e$ with
# $2^e \le |g| < 2^{e+1}$. Count how many of a model's gradients have which. The gradients of the
# layers' *outputs* matter most, since the backward pass goes through them: what is zero there is
# zero in every layer before.
#
# `run()` does a forward and a backward pass of a model that `layers` are in. Hooks see the
# gradients pass by: a forward hook of a layer gets its output, and `output.register_hook(f)` calls
# `f(gradient)` when that has its gradient.
#
# - Each number of each gradient counts once; a layer that is used twice in a pass counts twice.
# - Zeros have no exponent. They count under the key None.
# - Nothing else changes: the gradients are what they are without you, and no hook of yours is left
#   on a layer when you return.
# - Gradients may have any float dtype.
#
# **Predict**: where do most gradients of an MLP on MNIST lie, with a batch of 64: near $2^{-2}$,
# $2^{-10}$ or $2^{-25}$? And those of a GPT, whose loss is the mean over 1,024 tokens?
#
# <details><summary>Hint 1</summary>
#
# `torch.frexp(g)` gives f and n with g = f·2ⁿ and 0.5 ≤ |f| < 1: the exponent asked for is n − 1.
# Have `float32` numbers when you ask.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `handle = layer.register_forward_hook(lambda layer, inputs, output: …)`, `handle.remove()`. A
# forward hook that returns something replaces the output, and a tensor's hook the gradient: let
# yours return None. `counts.update(numbers.tolist())` of a `Counter` counts.
# </details>


# %% tags=["exercise"] exercise="gradient_exponents"
# %%px
def gradient_exponents(layers: list[nn.Module], run: Callable[[], None]) -> dict[int | None, int]:
    """How many numbers in the gradients of the layers' outputs have which exponent; zeros: None."""
    # BEGIN SOLUTION
    counts = Counter()

    def count(gradient):
        numbers = gradient.float()
        exponents = torch.frexp(numbers[numbers != 0]).exponent - 1
        counts.update(exponents.tolist())
        counts[None] += int((numbers == 0).sum())

    def watch(layer, inputs, output):
        output.register_hook(count)

    handles = [layer.register_forward_hook(watch) for layer in layers]
    run()
    for handle in handles:
        handle.remove()
    return dict(counts)
    # END SOLUTION


# %% tags=["check"] exercise="gradient_exponents" points=2
# %%px --timeout 20
check.gradient_exponents(gradient_exponents)


# %% tags=["hidden-check"] exercise="gradient_exponents" points=1
# %%px --timeout 20
def counted(scale):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).half()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.375)
    x = torch.tensor([[1.0, -3.0 - rank], [2.0, 0.5]]).half()

    def run():
        (model(x).float().pow(2).sum() * scale).backward()

    run()
    twice = [2 * p.grad for p in model.parameters()]
    found = gradient_exponents([model[0], model[1], model[2], model[2]], run)
    left = sum(len(layer._forward_hooks) for layer in model)
    same = all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), twice, strict=True))
    return sorted([str(key and int(key)), int(n)] for key, n in found.items() if n), left, same


check.show_values(scaled=[counted(scale) for scale in (1.0, 2.0**-20, 2.0**-24)])

# %% [markdown]
# The gradients of the activations of two models, in float32, with what float16 can hold: the MLP on
# MNIST with a batch of 64, and the small GPT with 16 windows of text.

# %%
# %%px --timeout 60
images, labels = (torch.from_numpy(part).to(device) for part in mnist("train", limit=2560))
windows = torch.from_numpy(text("train", 16 * 65).astype("int64")).view(16, 65).to(device)


def mlp_loss(model, x, y, dtype=torch.float32):
    return F.cross_entropy(model(x.to(dtype)).float(), y)


def gpt_loss(model, tokens):
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.float().transpose(1, 2), tokens[:, 1:])


torch.manual_seed(0)
watched = {"MLP": models.mlp(64).to(device), "GPT": models.GPT().to(device)}
histograms = {
    "MLP": gradient_exponents(
        [layer for layer in watched["MLP"] if isinstance(layer, nn.Linear)],
        lambda: mlp_loss(watched["MLP"], images[:64], labels[:64]).backward(),
    ),
    "GPT": gradient_exponents(
        [layer for layer in watched["GPT"].modules() if isinstance(layer, nn.Linear)],
        lambda: gpt_loss(watched["GPT"], windows).backward(),
    ),
}


def survivors(counts, scale=0):
    """Shares of the numbers other than 0 that 2^`scale` times them are: zero, subnormal, normal, too
    large, in float16."""
    total = sum(n for e, n in counts.items() if e is not None)
    ends = [-math.inf, -25, -14, 16, math.inf]
    return [
        sum(n for e, n in counts.items() if e is not None and low <= e + scale < high) / total
        for low, high in itertools.pairwise(ends)
    ]


if rank == 0:
    for name, counts in histograms.items():
        for scale in (0, 4, 8, 16, 24):
            lost, subnormal, normal, over = survivors(counts, scale)
            print(
                f"{name}, scale 2^{scale:<2}: {lost:6.1%} are lost, {subnormal:6.1%} subnormal, "
                f"{normal:6.1%} normal, {over:6.1%} too large"
            )

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Gradients use the lower end of float16, and fall off it")
for i, (name, counts) in enumerate(histograms.items()):
    exponents = sorted(e for e, n in counts.items() if e is not None and n)
    total = sum(n for e, n in counts.items() if e is not None)
    style = plots.artist(plots.series(i, name)) | {"marker": ""}
    axes.plot(exponents, [counts[e] / total for e in exponents], **style)
axes.axvspan(-24, -14, color=plots.NEUTRAL, alpha=0.25, lw=0)
axes.axvline(-14, color=plots.NEUTRAL, linewidth=1)
axes.axvline(-24, color=plots.NEUTRAL, linewidth=1, linestyle="--")
axes.axvline(15, color=plots.NEUTRAL, linewidth=1)
top = axes.get_ylim()[1]
for at, what in [(-24, "smallest"), (-14, "normal"), (15, "largest")]:
    axes.text(at, top, what, ha="center", va="bottom", fontsize="small", color=plots.NEUTRAL)
axes.set(xlabel="exponent (grey: subnormal halves)", ylabel="share", xlim=(-42, 17))
legend = axes.legend(
    frameon=False, labelcolor=plots.NEUTRAL, loc="upper right", bbox_to_anchor=(0.95, 0.9)
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Near $2^{-10}$ and near $2^{-18}$: the mean over 16 times as many outputs makes each gradient 16
# times smaller, and that is half of the way. Most of the GPT's are subnormal: they have few digits
# left. Above, up to $2^{15}$, nothing is used. So: multiply the loss, and by the chain rule every
# gradient, by a power of two. That moves the picture to the right, without a rounding error.
# </details>
#
# ## 5. Master weights
#
# *Difficulty 2/5, 10 minutes.*
#
# The model computes with 16-bit weights; exercise 3 says that it cannot be trained in them. So the
# optimizer gets float32 copies, the *master weights*. The update goes to the copy, which takes the
# smallest step, and the model gets the copy rounded. Many steps that vanish one by one add up.
#
# - `__init__`: `self.master` has a float32 `nn.Parameter` for each of `self.parameters`, which are
#   of 16 bits, in their order. `self.optimizer` is `make_optimizer(self.master)`.
# - `collect()`: the copies get the parameters' gradients, in float32; the parameters have none
#   afterwards (`.grad` is None). Where a parameter has no gradient, its copy has none either: an
#   optimizer leaves alone what has none, and decays what has zeros.
# - `step()`: the optimizer's step; then the parameters get the new values, rounded, in the memory
#   where they are.
#
# **Predict**: how many bytes does a parameter take now, with Adam in float32: weight, gradient,
# copy and states? And without mixed precision?
#
# <details><summary>Hint 1</summary>
#
# `nn.Parameter(parameter.detach().float())`. `parameter.detach().copy_(copy)` rounds and keeps the
# memory.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `zip(self.parameters, self.master, strict=True)` goes through both. In `collect()`, the copies of
# the step before still have a `.grad`.
# </details>


# %% tags=["exercise"] exercise="master_weights"
# %%px
class MasterWeights:
    """An optimizer on float32 copies of a model's 16-bit parameters.

    weights = MasterWeights(model, make_optimizer)
    loss_function(model(inputs), targets).backward()
    weights.collect()
    weights.step()
    """

    def __init__(self, model: nn.Module, make_optimizer) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # BEGIN SOLUTION
        self.master = [nn.Parameter(p.detach().float()) for p in self.parameters]
        self.optimizer = make_optimizer(self.master)
        # END SOLUTION

    def collect(self) -> None:
        """Move the parameters' gradients to the copies, as float32."""
        # BEGIN SOLUTION
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        # END SOLUTION

    def step(self) -> None:
        """Take the optimizer's step on the copies, and round them into the parameters."""
        # BEGIN SOLUTION
        self.optimizer.step()
        for parameter, copy in zip(self.parameters, self.master, strict=True):
            parameter.detach().copy_(copy.detach())
        # END SOLUTION


# %% tags=["check"] exercise="master_weights" points=3
# %%px --timeout 30
check.master_weights(MasterWeights)

# %% tags=["hidden-check"] exercise="master_weights" points=1
# %%px --timeout 20
layer = nn.Linear(2, 1).bfloat16()
nn.init.constant_(layer.weight, 1.0 + rank)
nn.init.constant_(layer.bias, 0.25)
weights, seen = MasterWeights(layer, partial(torch.optim.SGD, lr=2**-10, weight_decay=0.5)), []
for i in range(6):
    layer.weight.grad = torch.tensor([[1.0, 3.0]]).bfloat16()
    layer.bias.grad = torch.ones(1).bfloat16() if i % 3 == 0 else None
    weights.collect()
    given = [None if copy.grad is None else copy.grad.flatten().tolist() for copy in weights.master]
    weights.step()
    values = [*weights.master[0].flatten().tolist(), weights.master[1].item()]
    seen.append([f"{value:.5f}" for value in values] + layer.weight.flatten().tolist())
check.show_values(steps=seen, last=given, freed=layer.weight.grad is None)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 2 for the weight, 2 for the gradient, 4 for the copy, 8 for Adam's states: 16. (After `collect()` the
# gradient is there in float32 instead: 18. Kept until the next one, it makes 20 of them by the end of
# the next backward pass.) Without: 4, 4 and 8, also 16. Mixed precision saves nothing here.
# It saves half of the activations and of what is sent, and it computes faster.
# </details>
#
# ## 6. Scale the loss
#
# *Difficulty 2/5, 10 minutes.*
#
# A step with a fixed scale. Multiply the loss, let the backward pass run in 16 bits, and undo it
# where there is room: in float32. Everything that looks at the size of the gradient comes after
# that.
#
# - The backward pass is that of `scale` times the loss, which is a float32; `weights.collect()`
#   brings the gradients into float32, then they are divided by `scale`.
# - Clip them: all of `weights.master` together to a norm of at most `max_norm`. Return the norm
#   before clipping, of the true gradient, as a Python float.
# - `weights.step()`. The optimizer's settings stay as they are.
#
# A master weight without gradient (None) keeps none. Gradients that are all zero, as where all have
# underflown, stay zero: their norm is 0.
#
# **Predict**: a gradient of norm 0.5, a scale of 1024, `max_norm` 1. How long is the step if you
# clip first and unscale then?
#
# <details><summary>Hint 1</summary>
#
# One line for each point above, in this order.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `torch.nn.utils.clip_grad_norm_(parameters, max_norm)` clips in place and returns the norm before,
# as a tensor.
# </details>


# %% tags=["exercise"] exercise="scaled_step"
# %%px
def scaled_step(weights: MasterWeights, loss: torch.Tensor, scale: float, max_norm: float) -> float:
    """Take a training step with a scaled loss and clipped gradients; the norm before clipping."""
    # BEGIN SOLUTION
    (loss * scale).backward()
    weights.collect()
    for copy in weights.master:
        if copy.grad is not None:
            copy.grad /= scale
    norm = torch.nn.utils.clip_grad_norm_(weights.master, max_norm)
    weights.step()
    return norm.item()
    # END SOLUTION


# %% tags=["check"] exercise="scaled_step" points=3
# %%px --timeout 30
check.scaled_step(scaled_step)


# %% tags=["hidden-check"] exercise="scaled_step" points=1
# %%px --timeout 20
def scaled_steps(scale, max_norm):
    layer = nn.Linear(2, 1, bias=False).half()
    layer.large, layer.unused = (nn.Parameter(torch.ones(1).half()) for _ in range(2))
    nn.init.constant_(layer.weight, 1.0 + rank)
    weights = MasterWeights(layer, partial(torch.optim.SGD, lr=2.0**14))
    x, norms = torch.tensor([[0.5, 0.25]]).half(), []
    for _ in range(3):
        loss = layer(x).float().sum() * 2.0**-18 + layer.large.float() / 8
        norms.append(f"{scaled_step(weights, loss.sum(), scale, max_norm):.3e}")
    return norms, [f"{x:.4g}" for copy in weights.master for x in copy.flatten().tolist()]


check.show_values(cut=scaled_steps(2.0**12, 2.0**-6), whole=scaled_steps(2.0**15, 1.0))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The scaled gradient has norm 512, is clipped to 1, and is 1/1024 after unscaling: the step is 512
# times too short. It depends on the scale, and nothing warns. With Adam you would not even see it
# in the length of the step.
# </details>

# %% [markdown]
# ## 7. Find the scale by trying
#
# *Difficulty 3/5, 15 minutes.*
#
# Which scale is right? It depends on the model, and changes while it learns. So begin too high.
# Where a gradient overflows, the step is skipped and the scale goes down; where none has for a
# while, it goes up. That is `torch.amp.GradScaler`; write it, with exactly its rule.
#
# - `unscale(gradients)` divides the float32 gradients by the scale, in place, and returns whether
#   one of their numbers is an infinity or a NaN: then the step is to be skipped.
# - `update(overflow)` is called at the end of each step, skipped or not. After an overflow the
#   scale is multiplied by `backoff_factor`, and the count of good steps begins again. After
#   `growth_interval` good steps in a row it is multiplied by `growth_factor`, and the count begins
#   again.
# - The scale is a float32 in the library, and there it stays finite: where growing would make it
#   larger than `torch.finfo(torch.float32).max`, it stays, though the count begins again. Down, it
#   has no limit.
# - `self.scale` is the scale, `self.good_steps` the count. With them `state_dict()`, which is
#   given, is what the library's scaler saves, and loads.
#
# **Predict**: the scale begins at $2^{16}$, the largest gradient is 0.01, and `growth_interval`
# is 2000. At which scale does it settle, and what share of the steps is skipped from then on?
#
# <details><summary>Hint 1</summary>
#
# `torch.isfinite(gradient).all()` is a tensor of one bool.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In `update`: an overflow sets the count to 0. Else add one to it, and compare with the interval.
# </details>


# %% tags=["exercise"] exercise="loss_scaler"
# %%px
class LossScaler:
    """The dynamic scale of a loss, as `torch.amp.GradScaler` finds it."""

    def __init__(
        self,
        scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.scale, self.good_steps = scale, 0
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval

    def unscale(self, gradients: list[torch.Tensor]) -> bool:
        """Divide the gradients by the scale, in place; whether one is infinite or NaN somewhere."""
        # BEGIN SOLUTION
        finite = True
        for gradient in gradients:
            gradient /= self.scale
            finite = finite and bool(torch.isfinite(gradient).all())
        return not finite
        # END SOLUTION

    def update(self, overflow: bool) -> None:
        """Find the scale of the next step."""
        # BEGIN SOLUTION
        if overflow:
            self.scale *= self.backoff_factor
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            grown = self.scale * self.growth_factor
            self.scale = grown if grown <= torch.finfo(torch.float32).max else self.scale
            self.good_steps = 0
        # END SOLUTION

    def state_dict(self) -> dict[str, float | int]:
        return {
            "scale": self.scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.good_steps,
        }

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        self.scale, self.good_steps = state["scale"], state["_growth_tracker"]
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]


# %% tags=["check"] exercise="loss_scaler" points=3
# %%px --timeout 30
check.loss_scaler(LossScaler)


# %% tags=["hidden-check"] exercise="loss_scaler" points=1
# %%px --timeout 20
def scales(interval, bad):
    scaler, seen = LossScaler(2.0**10, 4.0, 0.25, interval), []
    for step in range(14):
        gradient = torch.tensor([2.0, -3.0]) * scaler.scale
        gradient[step % 2] = {0: gradient[step % 2], 1: math.inf, 2: math.nan}[bad(step)]
        overflow = scaler.unscale([torch.ones(1), gradient][:: 1 if step % 3 else -1])
        scaler.update(overflow)
        seen.append([bool(overflow), math.log2(scaler.scale), scaler.good_steps])
    return seen, str(gradient.tolist())


largest, smallest = LossScaler(2.0**127, growth_interval=1), LossScaler(2.0 ** (-20 - rank))
largest.update(False)
edge = LossScaler(torch.finfo(torch.float32).max / 2, growth_interval=1)
edge.update(False)
smallest.update(True)
ends = [torch.full((2,), math.inf), torch.ones(3)]
LossScaler(4.0).unscale(ends)
resumed = LossScaler()
resumed.load_state_dict(largest.state_dict() | {"growth_interval": 3, "_growth_tracker": 2})
resumed.scale = 2.0**rank
resumed.update(False)
check.show_values(
    three=scales(3, lambda step: (step == 5) + 2 * (step == 11 - rank)),
    one=scales(1, lambda step: step % 5 == 2),
    end=[largest.scale, largest.good_steps, edge.scale],
    low=math.log2(smallest.scale),
    rest=str([x.tolist() for x in ends]),
    resumed=[resumed.scale, resumed.good_steps],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The largest scale for which 0.01 times it stays below 65,520 is $2^{22}$. Every 2000 good steps it
# tries $2^{23}$, which overflows: one step in 2001 is lost, and that is the price of knowing.
# </details>

# %% [markdown]
# # Part C: several ranks
#
# ## 8. Send sixteen bits
#
# *Difficulty 2/5, 10 minutes.*
#
# Data parallelism sends every gradient in every step. In 16 bits that is half of the bytes. The
# mean over the ranks has two parts, a sum and a division by N, and in 16 bits the order matters:
# gradients that were scaled up to the end of the format overflow in the sum, even where their mean
# is a half.
#
# - Lay the float32 gradients side by side in one buffer of `dtype`, and all-reduce it once: 2 bytes
#   for each number, and one message.
# - No mean of finite halves overflows: divide before the sum.
# - An infinity or NaN of one rank is everybody's: it stays one.
# - The means go back into the float32 gradients, in place.
#
# **Predict**: four ranks have a gradient of 20,000 each, in float16. What comes out if you divide
# after the sum? And with gradients of $3 \cdot 2^{-24}$, if you divide before, in float16?
#
# <details><summary>Hint 1</summary>
#
# `torch.cat([g.flatten() for g in gradients])`, a division, `.to(dtype)`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `flat.split([g.numel() for g in gradients])` gives the parts, `part.view_as(g)` their shape.
# </details>


# %% tags=["exercise"] exercise="reduce_halves"
# %%px
def reduce_halves(
    gradients: list[torch.Tensor], dtype: torch.dtype, group: dist.ProcessGroup
) -> None:
    """Replace float32 gradients by their means over the ranks, in place; they travel as `dtype`."""
    # BEGIN SOLUTION
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    halves = (flat / group.size()).to(dtype)
    dist.all_reduce(halves, group=group)
    parts = halves.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    # END SOLUTION


# %% tags=["check"] exercise="reduce_halves" points=2
# %%px --timeout 30
check.reduce_halves(reduce_halves)


# %% tags=["hidden-check"] exercise="reduce_halves" points=1
# %%px --timeout 20
def reduced(values, dtype):
    gradients = [torch.tensor(value, device=device) for value in values]
    with Ledger() as ledger:
        reduce_halves(gradients, dtype, group)
    few = ledger.bytes_sent() < 3 * sum(g.numel() for g in gradients)
    return [g.tolist() for g in gradients], few, len(ledger.calls)


check.show_values(
    mean=reduced([[1.0 + rank, 8.0], [[0.5], [-4.0 * rank]]], torch.bfloat16),
    large=reduced([[4e4, -6e4], [2.0**-12]], torch.float16)[0],
    bad=str(reduced([[1.0, math.inf if rank == 1 else 2.0], [3.0]], torch.float16)[0]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 80,000 is no half: infinity, though the mean is 20,000. Before the sum, $3 \cdot 2^{-24}/4$ lies
# between 0 and the smallest half, rounds up to it, and the sum is $4 \cdot 2^{-24}$: a third too
# much. After the sum it would be exact. Loss scaling keeps gradients far from both ends, if it can;
# PyTorch's FSDP divides float16 gradients by about √N before the sum, and by the rest after.
# </details>
#
# What does it cost in accuracy? Random gradients on 2 to 4,096 ranks, here added up one after the
# other as a chain of ranks would, each sum rounded; and, on your ranks, `group`, which adds halves
# in float32 and rounds once.


# %%
# %%px --timeout 60
def error(sums, right):
    return float((sums.double() - right).norm() / right.norm())


torch.manual_seed(0)
numbers = torch.randn(4096, 500) + 1  # (ranks, numbers), with a mean of 1
errors = {torch.float16: [], torch.bfloat16: []}
counts = [2**k for k in range(1, 13)]
for dtype, found in errors.items():
    for n in counts:
        total = torch.zeros(500, dtype=dtype)
        for one in (numbers[:n] / n).to(dtype):
            total = total + one
        found.append(error(total, numbers[:n].double().mean(0)))
    mine = [numbers[rank].clone().to(device)]
    reduce_halves(mine, dtype, group)
    once = error(mine[0].cpu(), numbers[:world_size].double().mean(0))
    if rank == 0:
        at = dict(zip(counts, found, strict=True))
        print(
            f"{str(dtype)[6:]:8}: error {at[4]:.0e} on 4 ranks, {at[64]:.0e} on 64, "
            f"{at[4096]:.0e} on 4096; rounded once, on your ranks, {once:.0e}"
        )

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A longer chain of 16-bit sums loses more digits")
for i, (dtype, found) in enumerate(errors.items()):
    axes.loglog(counts, found, **plots.artist(plots.series(i, str(dtype)[6:])), base=2)
axes.set(xlabel="ranks", ylabel="relative error of the mean", yscale="log")
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# A bfloat16 has eight significant bits, and where the sum is 256 times as large as what is added, that
# vanishes, as in exercise 3. A tree loses less than a ring; but libraries choose between them by time
# and not by accuracy. Where ranks are many, reduce in float32.
#
# ## 9. The whole step
#
# *Difficulty 3/5, 15 minutes.*
#
# Now all of it, on top of data parallelism: each rank has a loss over samples of its own, and the
# gradients are averaged, as in lab 02. **All ranks take the step, or all skip it.** One rank's
# overflow is everybody's: if it skipped alone, its weights would be other ones from then on, and
# its scale too.
#
# - The scaled backward pass, `weights.collect()`, then the mean over the ranks with `reduce_halves`
#   in float16.
# - `scaler.unscale(…)` the float32 gradients of the master weights that have one.
# - Unless something has overflowed on some rank: clip all of them to `max_norm`, and
#   `weights.step()`. Else nothing moves.
# - At the end, `scaler.update(…)`, on all ranks alike. Return whether the step was taken.
#
# All ranks have gradients for the same parameters. Beside the gradients, send at most one number.
#
# **Predict**: does the step need a message to agree on the overflow?
#
# <details><summary>Hint 1</summary>
#
# What is infinity plus anything? After the reduction every rank sees the overflow of any.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `overflow = scaler.unscale(gradients)` comes after the reduction, and `if not overflow:` holds
# clipping and step.
# </details>


# %% tags=["exercise"] exercise="mixed_step"
# %%px
def mixed_step(
    weights: MasterWeights,
    scaler: LossScaler,
    loss: torch.Tensor,
    max_norm: float,
    group: dist.ProcessGroup,
) -> bool:
    """Take a step along the mean of the ranks' gradients, or skip it on all; whether it was taken."""
    # BEGIN SOLUTION
    (loss * scaler.scale).backward()
    weights.collect()
    gradients = [copy.grad for copy in weights.master if copy.grad is not None]
    reduce_halves(gradients, torch.float16, group)
    overflow = scaler.unscale(gradients)
    if not overflow:
        torch.nn.utils.clip_grad_norm_(weights.master, max_norm)
        weights.step()
    scaler.update(overflow)
    return not overflow
    # END SOLUTION


# %% tags=["check"] exercise="mixed_step" points=4
# %%px --timeout 30
check.mixed_step(mixed_step)


# %% tags=["hidden-check"] exercise="mixed_step" points=2
# %%px --timeout 20
def mixed_steps(bad):
    """Six steps; `bad(step)` is the rank that overflows, if any."""
    layer = nn.Linear(2, 1, bias=False).half().to(device)
    nn.init.constant_(layer.weight, 0.5)
    weights = MasterWeights(layer, partial(torch.optim.SGD, lr=0.125))
    scaler, seen = LossScaler(2.0**8, growth_interval=2), []
    for step in range(6):
        x = torch.tensor([[0.25 * (rank + 1), 1.0]], device=device).half()
        loss = layer(x).float().sum() * (1e6 if bad(step) == rank else 1.0)
        taken = mixed_step(weights, scaler, loss, 1.0, group)
        values = [f"{x:.3f}" for x in weights.master[0].flatten().tolist()]
        seen.append([bool(taken), scaler.scale, *values])
    return seen


check.show_values(good=mixed_steps(lambda step: None), bad=mixed_steps(lambda step: step - 1))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# No: the all-reduce of the gradients carries infinities and NaN to everyone. It does where ranks
# hold *shards*, as in lab 03: no rank sees the others' numbers then, and one number is all-reduced,
# which the norm needs anyway (it is infinite, or NaN, if a shard is).
# </details>
#
# ## 10. What it saves
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**: Ψ parameters, Adam with float32 states, N ranks, collectives on a ring.
# Bytes on one rank, at the end of a backward pass (float32 copies of the last step's gradients are
# gone by then):
#
# - `held_float32`: weights, gradients and states, all in float32;
# - `held_mixed`: 16-bit weights and gradients; master weights and states in float32;
# - `held_sharded`: the same, with the master weights and states sharded over the ranks (lab 03's
#   stage 1).
#
# And bytes that a rank sends in a step:
#
# - `sent_float32`: an all-reduce of float32 gradients;
# - `sent_mixed`: one of 16-bit gradients;
# - `sent_sharded`: a reduce-scatter of 16-bit gradients, and an all-gather of 16-bit weights.


# %% tags=["exercise"] exercise="predict_bytes"
# %%px
def predict_bytes(parameters: int, world_size: int) -> dict[str, float]:
    """Bytes on one rank: `held_` and `sent_`, each with `float32`, `mixed` and `sharded`."""
    # BEGIN SOLUTION
    ring = 2 * (world_size - 1) / world_size
    return {
        "held_float32": 16 * parameters,
        "held_mixed": (2 + 2 + 4 + 8) * parameters,
        "held_sharded": 4 * parameters + 12 * parameters / world_size,
        "sent_float32": ring * 4 * parameters,
        "sent_mixed": ring * 2 * parameters,
        "sent_sharded": ring * 2 * parameters,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_bytes" points=2
# %%px
check.predict_bytes(predict_bytes)

# %% tags=["hidden-check"] exercise="predict_bytes" points=1
# %%px --timeout 20
check.show_values(
    **{name: round(value / 1e5) for name, value in predict_bytes(1_200_000, 5).items()},
    alone=[round(value / 1e3) for _, value in sorted(predict_bytes(1000, 1).items())],
)

# %% [markdown]
# ## 11. Master weights in shards
#
# *Difficulty 4/5, 20 minutes.*
#
# Exercise 5 keeps all master weights and all of Adam's states on every rank. Stage 1 of ZeRO (lab
# 03) deals them out: a rank keeps in 32 bits what belongs to its own part of the flat weights, and
# nothing else. The 16-bit weights stay whole, so forward and backward pass know nothing of it. But
# no rank sees all gradients any more: the norm, and whether something has overflowed, are now
# **asked of all ranks**.
#
# The frame lays the model's 16-bit weights side by side in `self.flat`, with zeros at the end until
# its length divides by the number of ranks N, and sends rank 0's to all. `self.parameters` are
# views of it.
#
# - `__init__`: `self.master` is one float32 `nn.Parameter`, a copy of this rank's part of
#   `self.flat`: the rank-th of N equal ones, its zeros included. `self.optimizer` is
#   `make_optimizer([self.master])`.
# - `collect()`: lay the gradients of `self.parameters` side by side in the same way. Where a
#   parameter has none (None), and at the end, are zeros. Afterwards no parameter has a gradient,
#   and `self.master.grad` is this rank's part of the mean over the ranks, in float32. As in
#   exercise 8, gradients travel in 16 bits (the weights' dtype), and no mean of finite ones
#   overflows.
# - `step(scaler, max_norm)`: `scaler.unscale(…)`. Where no rank has an infinity or a NaN (a sum of
#   squares beyond float32 may count as one), clip the gradient of all shards together to a norm of at
#   most `max_norm`, take the optimizer's step, and give all ranks all weights, rounded, in the memory
#   where they are. Else nothing moves, on **no rank**.
# - At its end, on every rank: `scaler.update(…)`, no gradient is left (`self.master.grad` is None),
#   and it returns whether the step was taken.
# - In all, a rank sends what you predicted as `sent_sharded`, and beside that at most two numbers.
#   Between steps it keeps the 16-bit weights, `self.master` and the optimizer's states, and no
#   more.
#
# **Predict**: one number of one rank's gradient is infinite. How many of four ranks see that after
# a reduce-scatter, and which?
#
# <details><summary>Hint 1</summary>
#
# `dist.reduce_scatter_single(part, whole, group=self.group)` makes `part` this rank's part of the
# sum, and `dist.all_gather_single(self.flat, part, group=self.group)` puts the parts together
# again. Both are flat, and of the same dtype.
# </details>
#
# <details><summary>Hint 2</summary>
#
# The squares of all shards, added up by an all-reduce, are the square of the norm. And if one of
# them is infinite or NaN?
# </details>


# %% tags=["exercise"] exercise="sharded_master_weights"
# %%px
class ShardedMasterWeights:
    """16-bit weights, whole; a shard of their float32 copies and of the optimizer's states.

        weights = ShardedMasterWeights(model, make_optimizer, group)
        (scaler.scale * loss).backward()
        weights.collect()
        taken = weights.step(scaler, max_norm)

    All ranks start from rank 0's weights, and have scalers with the same scale.
    """

    def __init__(self, model: nn.Module, make_optimizer, group: dist.ProcessGroup) -> None:
        self.group = group
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        sizes = [p.numel() for p in self.parameters]
        padded = -(-sum(sizes) // group.size()) * group.size()
        self.flat = self.parameters[0].detach().new_zeros(padded)
        for parameter, part in zip(
            self.parameters, self.flat[: sum(sizes)].split(sizes), strict=True
        ):
            part.copy_(parameter.detach().flatten())
            parameter.data = part.view_as(parameter)
        dist.broadcast(self.flat, group_src=0, group=group)
        # BEGIN SOLUTION
        own = self.flat.chunk(group.size())[group.rank()]
        self.master = nn.Parameter(own.float())
        self.optimizer = make_optimizer([self.master])
        # END SOLUTION

    def collect(self) -> None:
        """Move gradients to `self.master`: this rank's part of the ranks' mean."""
        # BEGIN SOLUTION
        whole = torch.zeros_like(self.flat)
        start = 0
        for parameter in self.parameters:
            if parameter.grad is not None:
                whole[start : start + parameter.numel()] = parameter.grad.flatten()
            parameter.grad = None
            start += parameter.numel()
        whole /= self.group.size()
        part = torch.empty_like(self.master, dtype=whole.dtype)
        dist.reduce_scatter_single(part, whole, group=self.group)
        self.master.grad = part.float()
        # END SOLUTION

    def step(self, scaler: LossScaler, max_norm: float) -> bool:
        """Take the step on all ranks, or skip it on all; whether it was taken."""
        # BEGIN SOLUTION
        scaler.unscale([self.master.grad])
        squares = self.master.grad.square().sum()
        dist.all_reduce(squares, group=self.group)
        norm = squares.sqrt().item()
        taken = math.isfinite(norm)
        if taken:
            if norm > max_norm:
                self.master.grad *= max_norm / norm
            self.optimizer.step()
            part = self.master.detach().to(self.flat.dtype)
            dist.all_gather_single(self.flat, part, group=self.group)
        self.master.grad = None
        scaler.update(not taken)
        return taken
        # END SOLUTION


# %% tags=["check"] exercise="sharded_master_weights" points=4
# %%px --timeout 60
check.sharded_master_weights(ShardedMasterWeights)


# %% tags=["hidden-check"] exercise="sharded_master_weights" points=2
# %%px --timeout 20
def sharded_steps(dtype, make_optimizer, gradient_of, max_norm, tied):
    """Six steps; `gradient_of(step)` is this rank's, of each weight, before scaling."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3)).to(device, dtype)
    if tied:
        model[1].weight = model[0].weight
    for i, parameter in enumerate(model.parameters()):
        nn.init.constant_(parameter, 0.5 + rank - i)
    weights = ShardedMasterWeights(model, make_optimizer, group)
    scaler, seen = LossScaler(2.0**4, growth_interval=2), []
    for step in range(6):
        for i, parameter in enumerate(weights.parameters[: 1 + step % 2]):
            gradient = torch.full_like(parameter, gradient_of(step) * (i + 1) * scaler.scale)
            gradient[0] /= 2
            parameter.grad = gradient
        with Ledger() as ledger:
            weights.collect()
            done = weights.step(scaler, max_norm)
        seen.append([bool(done), scaler.scale, ledger.ring_bytes() <= 4 * len(weights.flat) + 64])
        seen[-1] += [f"{x:.4f}" for x in weights.master.flatten().tolist()]
        seen[-1] += [f"{x:.3f}" for p in model.parameters() for x in p.flatten().tolist()[-2:]]
    return seen


check.show_values(
    good=sharded_steps(
        torch.float16, partial(torch.optim.SGD, lr=0.25), lambda step: (rank + step) / 8, 0.5, False
    ),
    bad=sharded_steps(
        torch.float16,
        partial(torch.optim.SGD, lr=2**-12, momentum=0.5),
        lambda step: math.inf if step == 1 + rank else 0.25,
        math.inf,
        True,
    ),
    adam=sharded_steps(
        torch.bfloat16,
        partial(torch.optim.AdamW, lr=2**-7, weight_decay=0.5),
        lambda step: math.nan if (step, rank) == (3, 0) else 1.0,
        2.0,
        True,
    ),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# One: the rank that the number belongs to. The others' shards are finite, and so is what they would
# do. If that rank skipped alone, its part of the weights would be one step behind the others', and
# its scale half of theirs. One number tells them all: a sum of squares with an infinity or a NaN in
# it is none.
# </details>
#
# What a rank holds at the end of a backward pass of the small GPT with Adam, with all master
# weights and with a shard of them, and what it sends in a step: beside what you predicted in
# exercise 10.


# %%
# %%px --timeout 60
def held_by(weights, master, model):
    """Bytes on this rank by kind."""
    states = memory.model_states(model, weights.optimizer)
    return {
        "weights": states.parameters,
        "gradients": states.gradients,
        "master weights": memory.tensor_bytes(copy.detach() for copy in master),
        "optimizer states": states.optimizer_states,
    }


def measured(way):
    """After two steps and the backward pass of a third; what the second sends, on a ring."""
    torch.manual_seed(0)
    model = models.GPT().to(device).half()
    mine, scaler = windows[rank::world_size], LossScaler(2.0**12)
    if way == "mixed":
        weights = MasterWeights(model, torch.optim.Adam)
    else:
        weights = ShardedMasterWeights(model, torch.optim.Adam, group)
    for _ in range(2):
        loss = gpt_loss(model, mine)
        with Ledger() as ledger:
            if way == "mixed":
                mixed_step(weights, scaler, loss, 1.0, group)
                weights.optimizer.zero_grad()
            else:
                (scaler.scale * loss).backward()
                weights.collect()
                weights.step(scaler, 1.0)
    gpt_loss(model, mine).backward()
    master = weights.master if way == "mixed" else [weights.master]
    return held_by(weights, master, model), ledger.ring_bytes()


predicted = predict_bytes(models.parameter_count(models.GPT()), world_size)
held = {}
for way in ("mixed", "sharded"):
    held[way], sent = measured(way)
    for what, got in (("held", sum(held[way].values())), ("sent", sent)):
        right = predicted[f"{what}_{way}"]
        as_predicted = all(comm.allgather(abs(got - right) <= 0.02 * right))
        if rank == 0:
            print(f"{way}: {what} as you predicted, to 2%: {as_predicted}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots(
    f"Only in shards do master weights save memory (N = {world_size})", figsize=(7, 3)
)
styles = ["parameters", "gradients", plots.series(3, ""), "optimizer_states"]
for row, (way, found) in enumerate(reversed(held.items())):
    start = 0.0
    for drawn_as, (kind, size) in zip(styles, found.items(), strict=True):
        look = plots.hatched(drawn_as, kind if row else "_")
        axes.barh(row, size / 1e6, left=start, height=0.6, **look)
        start += size / 1e6
    at = predicted[f"held_{way}"] / 1e6
    axes.plot([at, at], [row - 0.42, row + 0.42], color=plots.NEUTRAL, linewidth=2)
ticks = axes.set_yticks(range(len(held)), list(reversed(held)))
axes.set_xlabel("MB on a rank after a backward pass (line: your prediction)", fontsize="small")
legend = drawn.legend(
    loc="outside lower center", ncols=4, frameon=False, labelcolor=plots.NEUTRAL, fontsize="small"
)

# %% [markdown]
# ## Six ways to train
#
# A small MLP on MNIST, its images averaged down to 7 × 7, and a small GPT on text, on all ranks, in
#
# - float32;
# - pure float16, and pure bfloat16: weights, gradients and optimizer in 16 bits;
# - float16 with master weights;
# - float16 with master weights and your scaler;
# - bfloat16 with master weights, which needs no scale, having the exponents of float32.
#
# The MLP twice: with a **small learning rate**, where each step is small beside the weights; and
# with a **small loss**, $2^{-19}$ times the cross-entropy with a learning rate $2^{19}$ times as
# large. The GPT with Adam and $2^{-20}$ times its loss, as if the mean were over a batch of 268
# million tokens instead of 256. In exact arithmetic, none of that changes anything: Adam divides by
# the size of the gradients (its $\epsilon$ is made as much smaller).
#
# **Predict**: which of them fail in the first, which in the second? And which number of Adam's, in
# pure float16, is zero after the first step?

# %%
# %%px --timeout 200
small_images = F.avg_pool2d(images, 4)
pairs = list(zip(small_images.split(128), labels.split(128), strict=True))
lines = torch.from_numpy(text("train", 48 * 8 * 33).astype("int64")).view(48, 8, 33).to(device)


def mnist_loss(model, pair, dtype):
    x, y = (part[rank::world_size] for part in pair)
    return mlp_loss(model, x, y, dtype)


def text_loss(model, tokens, dtype):
    return gpt_loss(model, tokens[rank::world_size])


def small_mlp():
    return models.mlp(32, inputs=49)


def small_gpt():
    return models.GPT(models.GPTConfig(sequence_length=32, hidden_size=32, layers=1))


def pure_step(model, optimizer, loss, dtype):
    """The gradients' mean travels, and the optimizer works, in the model's own dtype."""
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        mean = (parameter.grad / world_size).contiguous()
        dist.all_reduce(mean, group=group)
        parameter.grad = mean
    optimizer.step()


def losses_of(dtype, way, make_model, loss_of, batches, make_optimizer, weight):
    """The loss before each step, over all ranks."""
    torch.manual_seed(0)
    model = make_model().to(device, dtype)
    optimizer = make_optimizer(model.parameters())
    weights = MasterWeights(model, make_optimizer)
    scaler = LossScaler(2.0**12 / weight, growth_interval=50)
    losses = []
    for batch in batches:
        loss = loss_of(model, batch, dtype)
        if way == "pure":
            pure_step(model, optimizer, loss * weight, dtype)
        elif way == "scaled":
            mixed_step(weights, scaler, loss * weight, math.inf, group)
        else:
            (loss * weight).backward()
            weights.collect()
            reduce_halves([copy.grad for copy in weights.master], dtype, group)
            weights.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).cpu()
    return comm.allreduce(mean) / world_size


def averaged(losses, every):
    """The mean of each `every` losses; nothing from the first NaN on, but the first loss at least."""
    points = itertools.takewhile(math.isfinite, losses.view(-1, every).mean(1).tolist())
    return list(points) or [losses[0].item()]


WAYS = {
    "float32": (torch.float32, "pure"),
    "pure float16": (torch.float16, "pure"),
    "pure bfloat16": (torch.bfloat16, "pure"),
    "float16, master weights": (torch.float16, "master"),
    "float16, master weights, scale": (torch.float16, "scaled"),
    "bfloat16, master weights": (torch.bfloat16, "master"),
}
SMALL_RATE = partial(torch.optim.SGD, lr=1e-3)
SMALL_LOSS = partial(torch.optim.SGD, lr=0.1 * 2**19)
ADAM = partial(torch.optim.Adam, lr=3e-3, eps=1e-8 * 2**-20)
SETTINGS = {
    "MNIST, a small learning rate": (small_mlp, mnist_loss, pairs * 6, SMALL_RATE, 1.0),
    "MNIST, a small loss": (small_mlp, mnist_loss, pairs * 8, SMALL_LOSS, 2.0**-19),
    "GPT, a small loss, Adam": (small_gpt, text_loss, list(lines), ADAM, 2.0**-20),
}


def all_ways(setting):
    given = SETTINGS[setting]
    every = len(given[2]) // 8
    return {name: averaged(losses_of(*way, *given), every) for name, way in WAYS.items()}


curves = {setting: all_ways(setting) for setting in SETTINGS if "MNIST" in setting}

# %%
# %%px --timeout 200
curves |= {setting: all_ways(setting) for setting in SETTINGS if "GPT" in setting}
for setting, found in curves.items():
    start, end = found["float32"][0], found["float32"][-1]
    for name, points in found.items():
        learned = (start - points[-1]) / (start - end)
        how = "learns as float32 does" if learned > 0.95 else "falls back"
        if len(points) < len(found["float32"]):
            how = "is NaN"
        if rank == 0:
            print(f"{setting}: {name} {how}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots(
    "Small steps need master weights, small gradients a scale", 1, 3, figsize=(10, 4)
)
for column, (setting, found) in zip(axes, curves.items(), strict=True):
    every = len(SETTINGS[setting][2]) // 8
    for i, (name, points) in enumerate(found.items()):
        style = plots.artist(plots.series(i - 1, name)) | {"linewidth": 7 - i, "alpha": 0.8}
        if i == 0:
            style |= {"color": plots.NEUTRAL, "linestyle": "solid"}
        steps = [every * (k + 1) for k in range(len(points))]
        column.plot(steps, points, **style | {"marker": ""})
        if len(points) < len(found["float32"]):
            column.plot(steps[-1], points[-1], "x", color=style["color"], markersize=10, mew=3)
            at, offset = (steps[-1], points[-1]), (8, 6)
            column.annotate(
                "NaN", at, offset, textcoords="offset points", color=plots.NEUTRAL, fontsize="small"
            )
    column.margins(y=0.12)
    column.set_title(setting, fontsize="medium")
    column.set_xlabel("step")
axes[0].set_ylabel("loss")
legend = drawn.legend(
    *axes[0].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
    frameon=False,
    labelcolor=plots.NEUTRAL,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Left, both pure ways stall: what vanishes is the update, and bfloat16, with three bits less, loses
# more. Master weights mend it, in either format. In the middle, float16 fails without a scale,
# master weights or not: most gradients are zero before they get there, and what is left is rounded
# to multiples of the smallest half. Pure bfloat16 learns, since steps are large; with float32's
# exponents nothing underflows. On the right it is the same, and pure float16 fails at the first
# step: Adam's second moment, a thousandth of the gradient's *square*, is zero in halves, and so is
# $\epsilon$. It divides by zero. (Pure bfloat16 learns there too, a little behind the others:
# Adam's steps are as long as the learning rate says, which is much beside such small weights.)
# </details>
#
# ## Half of the bytes, on a slow link
#
# Here the links are memory, and a sum of halves is no faster. So emulate a network with a rank on
# each node, and average a million gradients over it.

# %%
# %%px --timeout 60
from parlab.network import Link, Network, emulated_group

link = Link.of(alpha=1e-4, bandwidth=50e6)
network = Network(nodes=world_size, ranks_per_node=1, inside=link, between=link)
slow = emulated_group(network)


def seconds_of(dtype, rounds=3):
    spent = []
    for _ in range(rounds):
        buffer = torch.zeros(2**20, dtype=dtype)
        comm.Barrier()
        start = time.perf_counter()
        dist.all_reduce(buffer, group=slow)
        spent.append(comm.allreduce(time.perf_counter() - start) / world_size)
    return statistics.median(spent)


times = {dtype: seconds_of(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)}
halved = (
    world_size == 1
    or max(times[torch.float16], times[torch.bfloat16]) < 0.75 * (times[torch.float32])
)
if rank == 0:
    print(f"16 bits take less than three quarters of float32's time, emulated: {halved}")

# %% [markdown]
# # Against the library
#
# PyTorch keeps the parameters in float32, and `torch.autocast` casts them where they are used:
# products in 16 bits, losses, norms and softmax in float32. So the parameters themselves are the
# master weights. `torch.amp.GradScaler` has the rule of exercise 7. The same MLP, the same batches,
# both on the default group; the scale begins far too high, and grows after four good steps.

# %%
# %%px --timeout 100
from torch.nn.parallel import DistributedDataParallel

START, INTERVAL = 2.0**26, 4


def fresh_model():
    torch.manual_seed(0)
    return models.mlp(64, inputs=49).to(device)


class Ours:
    def __init__(self, on):
        self.model = fresh_model().half()
        self.weights = MasterWeights(self.model, partial(torch.optim.SGD, lr=0.1))
        self.scaler, self.on = LossScaler(START, growth_interval=INTERVAL), on

    def step(self, x, y):
        loss = mlp_loss(self.model, x, y, torch.float16)
        mixed_step(self.weights, self.scaler, loss, math.inf, self.on)
        return loss.item(), self.scaler.scale


class Library:
    def __init__(self):
        self.model = DistributedDataParallel(fresh_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler(device.type, START, growth_interval=INTERVAL)

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), self.scaler.get_scale()


sides = {"ours": Ours(dist.group.WORLD), "library": Library()}
if device.type == "cpu":
    sides["ours on group"] = Ours(group)
spent = {name: [] for name in sides}
seen = {name: [] for name in sides}
for x, y in pairs * 2:
    for name, side in sides.items():
        comm.Barrier()
        start = time.perf_counter()
        seen[name].append(side.step(x[rank::world_size], y[rank::world_size]))
        spent[name].append(max(comm.allgather(time.perf_counter() - start)))
same_scales = [s for _, s in seen["ours"]] == [s for _, s in seen["library"]]
skipped = sum(b[1] < a[1] for a, b in itertools.pairwise([(0, START), *seen["library"]]))
gap = max(abs(a[0] - b[0]) for a, b in zip(seen["ours"], seen["library"], strict=True))
if rank == 0:
    print(
        f"the library's scales and skips, step by step: {same_scales}; some are skipped: {skipped > 2}"
    )
    print(f"its losses to two digits: {gap < 0.02}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
milliseconds = {name: 1e3 * statistics.median(times[4:]) for name, times in spent.items()}
drawn, axes = plots.subplots("A step of ours, over the library's")
rows = [(name, milliseconds[name] / milliseconds["library"]) for name in sides if name != "library"]
for row, (_, ratio) in enumerate(rows[::-1]):
    axes.barh(row, ratio, height=0.6, **plots.hatched("reference"))
axes.axvline(1, color=plots.NEUTRAL, linewidth=1)
ticks = axes.set_yticks(range(len(rows)), [name for name, _ in rows[::-1]])
axes.set_xlabel("time over autocast, GradScaler and DDP on the default group", fontsize="small")
print(f"{skipped} of {len(pairs) * 2} steps skipped; " + ", ".join(f"{n} {r:.2f}" for n, r in rows))

# %% [markdown]
# What to look for:
#
# - **The same rule.** Both begin too high, halve the scale step by step without moving a weight,
#   and then try a higher one every fifth step.
# - **No speed.** A CPU multiplies halves more slowly than floats, and a model this small costs its
#   calls. On a GPU products in 16 bits are several times as fast: that is what it is for.
# - **Where the casts are.** Autocast keeps what it must in float32 and sends gradients in float32;
#   you sent halves. `DistributedDataParallel` has a hook for that, `fp16_compress_hook`, which
#   divides before the sum too.
#
# # Going further
#
# - Round at random: up with the probability of how near the upper number is. Do weights of 16 bits
#   learn then without a copy?
# - Which `eps` would save pure float16 with Adam, and what does it do to the steps?
# - `torch.float8_e4m3fn`: decode it as in exercise 1, and find its largest number. Which scale does
#   a tensor need, and which does a block of 32 of its numbers?
