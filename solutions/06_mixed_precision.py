# %% [markdown]
# # Lab 06: Mixed precision
#
# 16-bit numbers take half of the memory and half of the time on the network, and a GPU multiplies them many
# times as fast. But the gaps between them are wider, and in float16, the range is smaller. In this
# lab, you decode a 16-bit float and encode it again, and you find out which numbers of a training
# run it cannot hold. You build two remedies: master weights and loss scaling. Then you use them on
# several ranks, where **all ranks must agree on which steps to skip**.
#
# | | |
# |---|---|
# | **You will be able to** | decode and encode float16 bit by bit; predict which updates and gradients vanish; train 16-bit weights with master weights and a loss scale that adapts; reduce in 16 bits without overflow; skip a step on all ranks or on none; shard the master weights like ZeRO; explain what mixed precision saves |
# | **Time** | 155 minutes: 135 for exercises, 15 for reading, 5 for the library |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or basic knowledge of ranks and all-reduces. For exercises 10 and 11, stage 1 of [lab 03](03_zero.ipynb). No GPU |
# | **Background** | [chapter 06](../book/06_mixed_precision.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px`
# run on all ranks. Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models, plots, timing, training
from parlab.checks import mixed_precision as check
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place,
# and you can continue.
#
# # Part A: sixteen bits
#
# ## 1. Decode float16
#
# *Difficulty 2/5, 10 minutes.*
#
# A `torch.float16` (a *half*) has 16 bits. From the highest bit to the lowest, these are one bit for the sign, five
# for the exponent $e$, and ten for the mantissa $m$. If you read $e$ and $m$ as integers, the value is:
#
# | exponent $e$ | value | |
# |---|---|---|
# | 1 to 30 | $\pm\,2^{\,e-15} \cdot (1 + m/1024)$ | normal: the leading 1 is not stored |
# | 0 | $\pm\,2^{-14} \cdot m/1024$ | subnormal, and the two zeros |
# | 31 | $\pm\infty$ if $m$ is 0, otherwise NaN | |
#
# Given the bits, an integer from 0 to 65,535, return the number.
#
# - −0.0 is not 0.0, although the two compare as equal. For a NaN, return any NaN.
# - Use only Python's own integers and floats, which can hold every half exactly, and `math`: no NumPy, no torch, and no
#   `struct`.
#
# **Predict**: what is the largest half? What is the smallest normal one, and the smallest one above zero?
#
# <details><summary>Hint 1</summary>
#
# `bits >> 15` is the sign, `bits >> 10 & 31` is the exponent, and `bits & 1023` is the mantissa.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `math.ldexp(x, n)` is x times 2ⁿ. `-0.0` is an ordinary float, and `-1 * 0.0` returns it.
# </details>


# %% tags=["exercise"] exercise="decode_half"
# %%px
def decode_half(bits: int) -> float:
    """Return the number that the 16 bits of a float16 stand for."""
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
# The largest half is 65,504, with exponent 30 and a full mantissa: $2^{15} \cdot (2 - 2^{-10})$. The smallest normal one
# is $2^{-14}$, about 6.1·10⁻⁵. The smallest one above zero is $2^{-24}$, about 6.0·10⁻⁸. A float32 has eight bits of
# exponent, so its normal numbers go from 1.2·10⁻³⁸ to 3.4·10³⁸. A bfloat16 also has eight, and about the same range.
# </details>
#
# ## 2. Encode float16
#
# *Difficulty 3/5, 15 minutes.*
#
# Now do the reverse: find the half that is nearest to a number. This happens each time a float32 becomes a float16, and
# each time two float16 numbers are added.
#
# - If two halves are equally near, take the one whose last bit is 0 (*round to nearest even*).
# - Rounding up may carry: from one exponent to the next, from subnormal to normal, or from the largest half to infinity.
# - A number that is nearer to 65,536, which is not a half, than to 65,504 becomes infinity. So does the number halfway
#   between them.
# - A number that is nearer to zero than to the smallest subnormal becomes zero, and it keeps its sign.
#
# Edge cases: an infinity stays an infinity, and a NaN becomes any NaN. The value is a Python float, whose mantissa has
# 52 bits. Round it once, directly to the half. Again, do not use NumPy, torch, or `struct`.
#
# **Predict**: 2049 is not a half. Which half does it become? Which one does 2051 become?
#
# <details><summary>Hint 1</summary>
#
# For a positive x, `math.frexp(x)` returns (f, n) with x = f·2ⁿ and 0.5 ≤ f < 1. It returns (0, 0) for zero. Halves
# near x are multiples of 2ⁿ⁻¹¹, or of 2⁻²⁴ if that is larger. How many of these steps is x?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Python's `round(x)` rounds to the nearest integer, and ties to even. The bits of positive halves are in order: the next
# larger half has the next larger bits. So with x = steps · 2ᵏ, the bits are (k + 24) · 1024 + steps, and every carry is
# right automatically.
# </details>


# %% tags=["exercise"] exercise="encode_half"
# %%px
def encode_half(value: float) -> int:
    """Return the bits of the float16 nearest to `value`; in a tie, the one whose last bit is 0."""
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
# From 2048 to 4096, the gap between halves is 2. Both 2049 and 2051 are halfway: 2049 becomes 2048, and 2051 becomes 2052,
# because these have an even last bit. Over many sums, neither direction has an advantage.
# </details>
#
# The next cell compares your half with torch's, on random numbers of all sizes:

# %%
# %%px --timeout 60
numbers = torch.randn(20_000, dtype=torch.float64) * torch.exp2(torch.randint(-30, 18, (20_000,)))
numbers = numbers.float()  # torch rounds to float32 before it rounds to float16
ours = torch.tensor([encode_half(x) for x in numbers.tolist()], dtype=torch.uint16)
same_bits = torch.equal(ours, numbers.half().view(torch.uint16))
if rank == 0:
    print(f"the bits are torch's: {same_bits}")

# %% [markdown]
# ## 3. Which updates vanish?
#
# *Difficulty 2/5, 10 minutes.*
#
# A weight and its update can both be halves, and both far from zero. But their sum is rounded, too, to the halves near
# the *weight*. If the update is too small compared with the weight, the sum is the weight again. Then the step has no
# effect, and later steps of this size have none either.
#
# `eps` is the gap from 1 to the next larger number: $2^{-10}$ for float16, $2^{-7}$ for bfloat16. **Predict in numbers**,
# for a positive weight far from both ends of the format:
#
# - `added`: the largest update $u$ for which weight + $u$ is the weight again
# - `subtracted`: the same for weight − $u$. Look closely at the numbers just below a power of two
# - `counter`: start at 0 and add 1 repeatedly. At which number does it stop?
#
# The check does this in torch and compares. (It accepts a difference of half a percent, because the weight's last bit
# decides whether a tie vanishes.)


# %% tags=["exercise"] exercise="predict_vanishing"
# %%px
def predict_vanishing(weight: float, eps: float) -> dict[str, float]:
    """Return `added` and `subtracted`, the largest updates without effect, and `counter`.

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
# The next cell takes a thousand upward steps from weights of 1, 0.5, and 1024. It uses two step
# sizes: the one that vanishes according to your prediction, and 1.01 times that size:

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
# With a step that is one percent longer, a float16 weight moves twice as far as it should, because each step is rounded up
# to a whole gap. A bfloat16 weight stops at the next power of two, where the gap doubles. A 16-bit weight cannot take small
# steps, whatever the optimizer does.

# %% [markdown]
# # Part B: two remedies
#
# ## 4. How small gradients are
#
# *Difficulty 2/5, 10 minutes.*
#
# Whether a gradient fits into 16 bits depends on its exponent: the $e$ with
# $2^e \le |g| < 2^{e+1}$. Count how many of a model's gradients have each exponent. The gradients
# of the layers' *outputs* matter most, because the backward pass goes through them: if they are
# zero, they pass only zeros on to earlier layers.
#
# `run()` does a forward and a backward pass of a model that contains `layers`. Use hooks to see the gradients: a forward
# hook of a layer gets the layer's output, and `output.register_hook(f)` calls `f(gradient)` when the output has its
# gradient.
#
# - Each number of each gradient counts once. A layer that is used twice in a pass counts twice.
# - Zeros have no exponent. Count them under the key None.
#
# Edge cases: the gradients are the same as without your hooks, and no hook is left on a layer when you return. Gradients may
# have any float dtype, but float32 can hold all of their numbers.
#
# **Predict**: where are most gradients of an MLP on MNIST, with a batch of 64: near $2^{-2}$, $2^{-10}$, or $2^{-25}$? Where
# are those of a GPT, whose loss is the mean over 1,024 tokens?
#
# <details><summary>Hint 1</summary>
#
# `torch.frexp(g)` returns f and n with g = f·2ⁿ and 0.5 ≤ |f| < 1, so the exponent is n − 1. Convert the numbers to float32
# first.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `handle = layer.register_forward_hook(lambda layer, inputs, output: …)`, and later `handle.remove()`. If a forward hook
# returns something, it replaces the output, and a tensor's hook replaces the gradient. So return None from both.
# `counts.update(numbers.tolist())` of a `Counter` counts.
# </details>


# %% tags=["exercise"] exercise="gradient_exponents"
# %%px
def gradient_exponents(layers: list[nn.Module], run: Callable[[], None]) -> dict[int | None, int]:
    """Count the numbers with each exponent in the gradients of the layers' outputs; zeros: None."""
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
# The next cells count the gradients of the activations of two models in float32, and show what float16 can hold of them. The
# models are the MLP on MNIST with a batch of 64, and the small GPT with 16 windows of text.

# %%
# %%px --timeout 60
images, labels = training.mnist_batches(2560, 2560, device)[0]
text_batch = training.text_batches(1, 16, 64, device)[0]


def gradients_of(model, loss_function, inputs, targets):
    """Return how many gradients of activations have which exponent, in the linear layers."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return gradient_exponents(layers, lambda: loss_function(model(inputs), targets).backward())


torch.manual_seed(0)
mlp, gpt = models.mlp(64).to(device), models.GPT().to(device)
histograms = {
    "MLP": gradients_of(mlp, F.cross_entropy, images[:64], labels[:64]),
    "GPT": gradients_of(gpt, training.token_loss, *text_batch),
}


# %%
# %%px
def survivors(counts, scale=0):
    """Multiply the numbers by 2^`scale`. Return which shares are zero, subnormal, normal, and too
    large in float16. Numbers that were 0 before do not count."""
    total = sum(n for e, n in counts.items() if e is not None)
    ends = [-math.inf, -25, -14, 16, math.inf]
    return [
        sum(n for e, n in counts.items() if e is not None and low <= e + scale < high) / total
        for low, high in itertools.pairwise(ends)
    ]


if rank == 0:
    _, subnormal, _, _ = survivors(histograms["GPT"])
    _, _, normal, _ = survivors(histograms["GPT"], 16)
    print("more than half of the GPT's gradients are subnormal in float16:", subnormal > 0.5)
    print("2^16 makes more than 99% of them normal:", normal > 0.99)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
for name, counts in histograms.items():
    for scale in (0, 4, 8, 16, 24):
        lost, subnormal, normal, over = survivors(counts, scale)
        print(
            f"{name}, scale 2^{scale:<2}: {lost:6.1%} are lost, {subnormal:6.1%} subnormal, "
            f"{normal:6.1%} normal, {over:6.1%} too large"
        )

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Many gradients are at or below the lower end of float16's range")
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
# They are near $2^{-10}$ and near $2^{-18}$. The mean over 16 times as many outputs makes each gradient 16 = $2^4$ times
# smaller, which explains half of the difference between the exponents. Most of the GPT's gradients are subnormal, so they have
# few digits left. The range above, up to $2^{15}$, is not used. So multiply the loss by a power of two. By the chain rule, this
# multiplies every gradient by it. It moves the whole picture to the right, without a rounding error.
# </details>
#
# ## 5. Master weights
#
# *Difficulty 2/5, 10 minutes.*
#
# The model computes with 16-bit weights, but exercise 3 shows that small updates of such weights vanish. So the optimizer
# gets float32 copies, the *master weights*. It updates these copies, which can take small steps, and the model then gets
# their rounded values. In the copies, many small steps add up, although each of them alone would vanish in 16 bits.
#
# - In `__init__`, `self.master` gets a float32 `nn.Parameter` for each of the 16-bit `self.parameters`, in the same order.
#   `self.optimizer` is `make_optimizer(self.master)`.
# - `collect()` moves the parameters' gradients to the copies, in float32. Afterwards, the parameters have no gradients
#   (`.grad` is None). If a parameter has no gradient, its copy has none either, because an optimizer skips a parameter
#   without a gradient, but decays one whose gradient is zero.
# - `step()` takes the optimizer's step. Then the parameters get the new values, rounded, in their own memory.
#
# **Predict**: just before `collect()`, how many bytes does a parameter take, with Adam in float32? Count weight, gradient, copy,
# and states. How many does it take without mixed precision?
#
# <details><summary>Hint 1</summary>
#
# `nn.Parameter(parameter.detach().float())`. `parameter.detach().copy_(copy)` rounds and keeps the memory.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `zip(self.parameters, self.master, strict=True)` loops over both. In `collect()`, the copies still have a `.grad` from the
# step before.
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
weights, steps = MasterWeights(layer, partial(torch.optim.SGD, lr=2**-10, weight_decay=0.5)), []
for i in range(6):
    layer.weight.grad = torch.tensor([[1.0, 3.0]]).bfloat16()
    layer.bias.grad = torch.ones(1).bfloat16() if i % 3 == 0 else None
    weights.collect()
    given = [None if copy.grad is None else copy.grad.flatten().tolist() for copy in weights.master]
    weights.step()
    values = [*weights.master[0].flatten().tolist(), weights.master[1].item()]
    steps.append([f"{value:.5f}" for value in values] + layer.weight.flatten().tolist())
check.show_values(steps=steps, last=given, freed=layer.weight.grad is None)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 2 for the weight, 2 for the gradient, 4 for the copy, and 8 for Adam's states: 16. (After `collect()`, the gradient exists in
# float32 instead, which makes 18. If it is kept, there are 20 at the end of the next backward pass.) Without mixed precision,
# there are 4, 4, and 8, which is also 16. So mixed precision saves nothing here. It saves up to half of the activations and half
# of what is sent, and GPUs compute faster.
# </details>
#
# ## 6. Scale the loss
#
# *Difficulty 2/5, 10 minutes.*
#
# Take a step with a fixed scale. Multiply the loss, run the backward pass in 16 bits, and undo the scale in float32, where
# there is room. Everything that depends on the size of the gradient comes after that.
#
# - Run the backward pass of `scale` times the loss, which is a float32. `weights.collect()` converts the gradients to float32.
#   Then divide them by `scale`.
# - Clip the gradients of all of `weights.master` together to a norm of at most `max_norm`. Return the norm of the true
#   gradient before clipping, as a Python float.
# - Call `weights.step()`. The optimizer's settings do not change.
#
# Edge cases: a master weight without a gradient (None) keeps None. If all gradients are zero, for example because all of them
# have underflowed, they stay zero, and their norm is 0.
#
# **Predict**: a gradient has norm 0.5, the scale is 1024, and `max_norm` is 1. Suppose that you clip the gradient before you
# unscale it. Which norm does it have when the optimizer takes its step?
#
# <details><summary>Hint 1</summary>
#
# You need one line for each step of the text above, in this order.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `torch.nn.utils.clip_grad_norm_(parameters, max_norm)` clips in place and returns the norm before clipping, as a tensor.
# </details>


# %% tags=["exercise"] exercise="scaled_step"
# %%px
def scaled_step(weights: MasterWeights, loss: torch.Tensor, scale: float, max_norm: float) -> float:
    """Take a step with a scaled loss and clipped gradients. Return the norm before clipping."""
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
    layer.large, layer.unused, layer.other = (nn.Parameter(torch.ones(1).half()) for _ in range(3))
    nn.init.zeros_(layer.weight)
    weights = MasterWeights(layer, partial(torch.optim.SGD, lr=2.0**14))
    x, norms = torch.tensor([[0.5 + rank, 0.25]]).half(), []
    for _ in range(3):
        loss = layer(x).float().sum() * 2.0**-26 + (layer.large.float() / 8).sum()
        loss = loss + (layer.other.float() * 5 / 64).sum()  # so the norm is not the largest one
        norms.append(f"{scaled_step(weights, loss, scale, max_norm):.3e}")
    found = [*weights.master, *layer.parameters()]
    return norms, [f"{x:.4g}" for tensor in found for x in tensor.flatten().tolist()]


check.show_values(cut=scaled_steps(2.0**12, 2.0**-6), whole=scaled_steps(2.0**15, 1.0))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The scaled gradient has norm 512. It is clipped to 1, and after unscaling it is 1/1024, so the step is 512 times too short.
# Its length depends on the scale, and there is no error. With Adam, you would not even see it in the length of the step.
# </details>

# %% [markdown]
# ## 7. Find the scale by trying
#
# *Difficulty 3/5, 10 minutes.*
#
# Which scale is right? It depends on the model, and it changes during training. So start with a scale that is too high. If a
# gradient overflows, skip the step and reduce the scale. If there has been no overflow for a while, increase it. Write this as
# `torch.amp.GradScaler` does it, with exactly its rule.
#
# - `unscale(gradients)` divides the float32 gradients by the scale, in place. It returns whether one of their numbers is an
#   infinity or a NaN. In this case, the step must be skipped.
# - `update(overflow)` is called at the end of each step, skipped or not. After an overflow, the scale is multiplied by
#   `backoff_factor`, and the count of good steps starts again. After `growth_interval` good steps in a row, the scale is
#   multiplied by `growth_factor`, and the count starts again.
# - `self.scale` is the scale, and `self.good_steps` is the count. The given `state_dict()` uses them. It is what the library's
#   scaler saves and loads.
#
# Edge case: the library's scale is a float32 and stays finite. If growing would make it larger than
# `torch.finfo(torch.float32).max`, it stays as it is, and the count starts again. There is no lower limit.
#
# **Predict**: the scale starts at $2^{16}$, the largest gradient is 0.01, and `growth_interval` is 2000. At which scale does it
# settle? Which share of the steps is skipped from then on?
#
# <details><summary>Hint 1</summary>
#
# `torch.isfinite(gradient).all()` is a tensor with one bool.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In `update`, an overflow sets the count to 0. Otherwise, add one to the count and compare it with the interval.
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
        """Divide the gradients by the scale, in place. Return whether any is infinite or NaN."""
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
    scaler, states = LossScaler(2.0**10, 4.0, 0.25, interval), []
    for step in range(14):
        gradient = torch.tensor([2.0, -3.0]) * scaler.scale
        gradient[step % 2] = {0: gradient[step % 2], 1: math.inf, 2: math.nan}[bad(step)]
        overflow = scaler.unscale([torch.ones(1), gradient][:: 1 if step % 3 else -1])
        scaler.update(overflow)
        states.append([bool(overflow), math.log2(scaler.scale), scaler.good_steps])
    return states, str(gradient.tolist())


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
# The largest scale for which 0.01 times the scale stays below 65,520 is $2^{22}$. Every 2000 good steps, the scaler tries
# $2^{23}$, which overflows. So one step in 2001 is lost. This is the price of finding the scale.
# </details>

# %% [markdown]
# # Part C: several ranks
#
# ## 8. Send sixteen bits
#
# *Difficulty 2/5, 10 minutes.*
#
# Data parallelism sends every gradient in every step. In 16 bits, these are half as many bytes. The mean over N ranks
# consists of a sum and a division by N, and in 16 bits their order matters: gradients near the
# largest float16 overflow in the sum, even if their mean does not.
#
# - Copy the float32 gradients into one buffer of `dtype`, and all-reduce it once. This is one message, with 2 bytes for each
#   number.
# - The mean of finite halves does not overflow: divide before the sum.
# - An infinity or a NaN of one rank must arrive at all ranks.
# - Copy the means back into the float32 gradients, in place.
#
# **Predict**: four ranks each have a gradient of 20,000 in float16. What is the result if you divide after the sum? What is the
# result for gradients of $3 \cdot 2^{-24}$ if you divide before the sum, in float16?
#
# <details><summary>Hint 1</summary>
#
# `torch.cat([g.flatten() for g in gradients])`, a division, and `.to(dtype)`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `flat.split([g.numel() for g in gradients])` returns the parts, and `part.view_as(g)` gives each part its shape.
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
# The sum, 80,000, is too large for float16, so the result is infinity, although the mean is 20,000. If you divide before the sum,
# $3 \cdot 2^{-24}/4$ is between 0 and the smallest half and rounds up to it. The sum is $4 \cdot 2^{-24}$, a third too much.
# If you divided after the sum, the result would be exact. Loss scaling keeps gradients far from both ends, if possible. PyTorch's
# FSDP divides float16 gradients by about √N before the sum, and by the rest after it.
# </details>
#
# What does this cost in accuracy? The next cells simulate 2 to 4,096 ranks: they add random gradients one after the other, as a
# chain of ranks would, and round each sum. On your ranks, `group` sums halves in float32 and rounds once.


# %%
# %%px --timeout 60
def error(sums, right):
    return float((sums.double() - right).norm() / right.norm())


def summed_in_turn(numbers, dtype):
    """Return the mean over the ranks, summed rank by rank in `dtype`."""
    total = torch.zeros(numbers.shape[1], dtype=dtype)
    for one in (numbers / len(numbers)).to(dtype):
        total = total + one
    return total


# %%
# %%px --timeout 60
torch.manual_seed(0)
numbers = torch.randn(4096, 500) + 1  # (ranks, numbers), with a mean of 1
counts = [2**k for k in range(1, 13)]
errors = {}
for dtype in (torch.float16, torch.bfloat16):
    means = {n: numbers[:n].double().mean(0) for n in counts}
    errors[dtype] = [error(summed_in_turn(numbers[:n], dtype), means[n]) for n in counts]
    own = [numbers[rank].clone().to(device)]
    reduce_halves(own, dtype, group)
    once = error(own[0].cpu(), numbers[:world_size].double().mean(0))
    if rank == 0:
        by_ranks = ", ".join(f"{errors[dtype][counts.index(n)]:.0e} on {n}" for n in (4, 64, 4096))
        print(
            f"{str(dtype)[6:]:8}: error {by_ranks} ranks; rounded once, on your ranks, {once:.0e}"
        )

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A longer chain of 16-bit sums loses more digits")
for i, (dtype, found) in enumerate(errors.items()):
    axes.loglog(counts, found, **plots.artist(plots.series(i, str(dtype)[6:])), base=2)
axes.set(xlabel="ranks", ylabel="relative error of the mean", yscale="log")
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# A bfloat16 has eight significant bits. When the sum is 512 times as large as the next number, this number vanishes, as in
# exercise 3. (If the sum is a power of two and grows, 256 times is enough.) A sum of pairs of sums (a tree) loses less than a
# ring, which adds up one rank after the other. But libraries choose between them by time, not by accuracy. If there are many
# ranks, reduce in float32.
#
# ## 9. The whole step
#
# *Difficulty 3/5, 15 minutes.*
#
# Now combine all of this with data parallelism: each rank has a loss over its own samples, and the gradients are averaged, as in
# lab 02. **All ranks take the step, or all ranks skip it.** An overflow on one rank concerns all of them. If only this rank
# skipped, its weights and its scale would be different from then on.
#
# - Run the scaled backward pass, then `weights.collect()`, and then compute the mean over the ranks with `reduce_halves` in
#   float16.
# - Call `scaler.unscale(…)` with the float32 gradients of the master weights that have one.
# - If nothing has overflowed on any rank, clip all gradients together to `max_norm` and call `weights.step()`. Otherwise,
#   change no weight.
# - At the end, call `scaler.update(…)` in the same way on all ranks. Return whether the step was taken.
#
# All ranks have gradients for the same parameters. In addition to the gradients, send at most one number.
#
# **Predict**: do the ranks need another message to agree on the overflow?
#
# <details><summary>Hint 1</summary>
#
# What is infinity plus any number? After the reduction, every rank sees the overflow of any rank.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Call `overflow = scaler.unscale(gradients)` after the reduction. Clip and step inside `if not overflow:`.
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
    """Take a step along the ranks' mean gradient, or skip it on all. Return whether it was taken."""
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
    scaler, steps = LossScaler(2.0**8, growth_interval=2), []
    for step in range(6):
        x = torch.tensor([[0.25 * (rank + 1), 1.0]], device=device).half()
        loss = layer(x).float().sum() * (1e6 if bad(step) == rank else 1.0)
        taken = mixed_step(weights, scaler, loss, 1.0, group)
        values = [f"{x:.3f}" for x in weights.master[0].flatten().tolist()]
        steps.append([bool(taken), scaler.scale, *values])
    return steps


check.show_values(good=mixed_steps(lambda step: None), bad=mixed_steps(lambda step: step - 1))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# No. The all-reduce of the gradients brings infinities and NaN to all ranks. If ranks hold
# *shards*, as in lab 03, they do need another message, because no rank sees the other ranks'
# numbers. It is enough to all-reduce one number, the sum of squares, which the norm needs anyway.
# (It is infinite or NaN if a shard contains such a number.)
# </details>
#
# ## 10. What it saves
#
# *Difficulty 2/5, 10 minutes.*
#
# **Predict in numbers**, for Ψ parameters, Adam with float32 states, N ranks, and collectives on a ring. First, the bytes on one
# rank at the end of a backward pass (the float32 copies of the last step's gradients no longer exist):
#
# - `held_float32`: weights, gradients, and states, all in float32
# - `held_mixed`: 16-bit weights and gradients, and float32 master weights and states
# - `held_sharded`: the same, but the master weights and states are sharded over the ranks (stage 1 of lab 03)
#
# Second, the bytes that a rank sends in a step:
#
# - `sent_float32`: an all-reduce of float32 gradients
# - `sent_mixed`: an all-reduce of 16-bit gradients
# - `sent_sharded`: a reduce-scatter of 16-bit gradients and an all-gather of 16-bit weights


# %% tags=["exercise"] exercise="predict_bytes"
# %%px
def predict_bytes(parameters: int, world_size: int) -> dict[str, float]:
    """Return the bytes that a rank holds and sends, `held_` and `sent_`, for three methods."""
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
# *Difficulty 4/5, 25 minutes.*
#
# Exercise 5 keeps all master weights and all of Adam's states on every rank. Stage 1 of ZeRO (lab 03) distributes them: a rank
# keeps 32-bit numbers only for its own part of the flat weights. The 16-bit weights stay whole, so the forward and backward
# passes do not change. But no rank sees all gradients any more. **All ranks together** must compute
# the norm and detect an overflow.
#
# The given code copies the model's 16-bit weights into `self.flat`, with zeros at the end until the number of ranks N divides
# its length, and broadcasts those of rank 0. `self.parameters` are views of it.
#
# - In `__init__`, `self.master` is one float32 `nn.Parameter`, a copy of this rank's part of `self.flat`. The N parts are equal,
#   and include the zeros. Rank r of `self.group` has part r. `self.optimizer` is
#   `make_optimizer([self.master])`.
# - `collect()` copies the gradients of `self.parameters` into one buffer in the same way. Afterwards, no parameter has a
#   gradient, and `self.master.grad` is this rank's part of the mean over the ranks, in float32 and still scaled. As in
#   exercise 8, gradients travel in 16 bits (the weights' dtype), and the mean of finite ones does not overflow.
# - `step(scaler, max_norm)` calls `scaler.unscale(…)`. If no rank has an infinity or a NaN, clip the gradients of all shards
#   together to a norm of at most `max_norm`, take the optimizer's step, and gather all weights on all ranks, rounded, in
#   their own memory. Otherwise, no weight changes on **any rank**.
# - At the end of `step`, on every rank: call `scaler.update(…)`, remove the gradient (`self.master.grad` is None), and return
#   whether the step was taken.
#
# Edge cases: a parameter without a gradient (None) counts as zeros, and so does the end of the buffer. In total, a rank sends
# what you predicted as `sent_sharded`, and at most two more numbers. Between steps, it keeps only the 16-bit weights,
# `self.master`, and the optimizer's states. A sum of squares that is too large for float32 may count as an overflow.
#
# **Predict**: one number of one rank's gradient is infinite. After a reduce-scatter, how many of four ranks see this, and which
# ones?
#
# <details><summary>Hint 1</summary>
#
# `dist.reduce_scatter_single(part, whole, group=self.group)` makes `part` this rank's part of the sum, and
# `dist.all_gather_single(self.flat, part, group=self.group)` puts the parts together again. Both tensors are flat and have the
# same dtype.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Sum the squares of all shards with an all-reduce. The result is the square of the norm. Is this square finite if one of the
# numbers is infinite or NaN?
# </details>


# %% tags=["exercise"] exercise="sharded_master_weights"
# %%px
class ShardedMasterWeights:
    """All 16-bit weights, and one shard of their float32 copies and of the optimizer's states.

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
        """Take the step on all ranks, or skip it on all. Return whether it was taken."""
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
    scaler, steps = LossScaler(2.0**4, growth_interval=2), []
    for step in range(6):
        for i, parameter in enumerate(weights.parameters[: 1 + step % 2]):
            gradient = torch.full_like(parameter, gradient_of(step) * (i + 1) * scaler.scale)
            gradient[0] /= 2
            parameter.grad = gradient
        with Ledger() as ledger:
            weights.collect()
            stepped = weights.step(scaler, max_norm)
        steps.append(
            [bool(stepped), scaler.scale, ledger.ring_bytes() <= 4 * len(weights.flat) + 64]
        )
        steps[-1] += [f"{x:.4f}" for x in weights.master.flatten().tolist()]
        steps[-1] += [f"{x:.3f}" for p in model.parameters() for x in p.flatten().tolist()[-2:]]
    return steps


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
# One rank sees it: the rank whose part contains the number. The shards of the other ranks are finite, and so are the steps that
# they would take. If this rank skipped alone, its part of the weights would be one step behind the others, and its scale would be
# half of theirs. One number is enough to agree: a sum of squares that contains an infinity or a NaN is not finite.
# </details>
#
# The next cells measure what a rank holds at the end of a backward pass of the small GPT with Adam, with all master weights and
# with a shard of them. They also measure what it sends in a step, and compare both with your predictions from exercise 10.


# %%
# %%px --timeout 60
def mixed(model, inputs, targets):
    """Two steps with whole master weights; what the second one sends."""
    weights, scaler = MasterWeights(model, torch.optim.Adam), LossScaler(2.0**12)
    for _ in range(2):
        loss = training.token_loss(model(inputs).float(), targets)
        with Ledger() as ledger:
            mixed_step(weights, scaler, loss, 1.0, group)
            weights.optimizer.zero_grad()
    return weights, weights.master, ledger.ring_bytes()


# %%
# %%px
def sharded(model, inputs, targets):
    """Two steps with a shard of the master weights; what the second one sends."""
    weights, scaler = ShardedMasterWeights(model, torch.optim.Adam, group), LossScaler(2.0**12)
    for _ in range(2):
        loss = training.token_loss(model(inputs).float(), targets)
        with Ledger() as ledger:
            (scaler.scale * loss).backward()
            weights.collect()
            weights.step(scaler, 1.0)
    return weights, [weights.master], ledger.ring_bytes()


# %%
# %%px --timeout 60
def measured(train):
    """Return bytes by kind after two steps and a backward pass, and the bytes sent in a step."""
    torch.manual_seed(0)
    model = models.GPT().to(device).half()
    inputs, targets = (part[rank::world_size] for part in text_batch)
    weights, master, sent = train(model, inputs, targets)
    training.token_loss(model(inputs).float(), targets).backward()
    states = memory.model_states(model, weights.optimizer)
    held = {
        "weights": states.parameters,
        "gradients": states.gradients,
        "master weights": memory.tensor_bytes(copy.detach() for copy in master),
        "optimizer states": states.optimizer_states,
    }
    return held, sent


# %%
# %%px --timeout 60
predicted = predict_bytes(models.parameter_count(models.GPT()), world_size)
held = {}
for way, train in {"mixed": mixed, "sharded": sharded}.items():
    held[way], sent = measured(train)
    for what, got in (("held", sum(held[way].values())), ("sent", sent)):
        right = predicted[f"{what}_{way}"]
        as_predicted = all(comm.allgather(abs(got - right) <= 0.02 * right))
        if rank == 0:
            print(f"{way}: {what} as you predicted, to 2%: {as_predicted}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots(
    f"Master weights save memory only if they are sharded (N = {world_size})", figsize=(7, 3)
)
styles = ["parameters", "gradients", plots.series(3, ""), "optimizer_states"]
for row, (way, found) in enumerate(reversed(held.items())):
    start = 0.0
    for drawn_as, (kind, size) in zip(styles, found.items(), strict=True):
        bar_style = plots.hatched(drawn_as, kind if row else "_")
        axes.barh(row, size / 1e6, left=start, height=0.6, **bar_style)
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
# The next cells train a small MLP on MNIST, with images averaged down to 7 × 7, and a small GPT on text. They use all ranks and
# six ways:
#
# - float32
# - pure float16 and pure bfloat16: weights, gradients, and optimizer in 16 bits
# - float16 with master weights
# - float16 with master weights and your scaler
# - bfloat16 with master weights. It needs no scale, because it has the exponents of float32
#
# The MLP is trained twice. With a **small learning rate**, each step is small compared with the weights. With a **small loss**,
# the loss is $2^{-19}$ times the cross-entropy, and the learning rate is $2^{19}$ times as large. The GPT is trained with Adam and
# $2^{-20}$ times its loss. A rank's loss is the mean over its part of a batch, 64 tokens on each of four ranks. The gradients of its
# activations are then as small as with a mean over 67 million tokens instead of 64.
# In exact arithmetic, this would change nothing: Adam divides by the size of the gradients (and its $\epsilon$ is reduced by the
# same factor).
#
# **Predict**: which ways fail in the first setting, and which in the second? In pure float16, which of Adam's numbers is zero after
# the first step?

# %%
# %%px --timeout 200
small_images = F.avg_pool2d(images, 4)
pairs = list(zip(small_images.split(128), labels.split(128), strict=True))
lines = training.text_batches(48, 8, 32, device)


def small_mlp():
    return models.mlp(32, inputs=49)


def small_gpt():
    return models.GPT(models.GPTConfig(sequence_length=32, hidden_size=32, layers=1))


def loss_of(model, batch, dtype):
    """Return the loss of this rank's samples."""
    inputs, targets = (part[rank::world_size] for part in batch)
    scores = model(inputs.to(dtype) if inputs.is_floating_point() else inputs)
    return training.token_loss(scores.float(), targets)


# %%
# %%px
def pure_step(model, optimizer, loss, dtype):
    """Average the gradients and take the optimizer's step, both in the model's own dtype."""
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        mean = (parameter.grad / world_size).contiguous()
        dist.all_reduce(mean, group=group)
        parameter.grad = mean
    optimizer.step()


def master_step(weights, loss, dtype):
    """Average the gradients in the model's dtype, and take the optimizer's step in float32."""
    loss.backward()
    weights.collect()
    reduce_halves([copy.grad for copy in weights.master], dtype, group)
    weights.step()


# %%
# %%px
def losses_of(dtype, way, make_model, batches, make_optimizer, weight):
    """Return the mean loss over all ranks before each step; `weight` multiplies the loss."""
    torch.manual_seed(0)
    model = make_model().to(device, dtype)
    optimizer = make_optimizer(model.parameters())
    weights = MasterWeights(model, make_optimizer)
    scaler = LossScaler(2.0**12 / weight, growth_interval=50)
    steps = {
        "pure": lambda loss: pure_step(model, optimizer, loss, dtype),
        "master": lambda loss: master_step(weights, loss, dtype),
        "scaled": lambda loss: mixed_step(weights, scaler, loss, math.inf, group),
    }
    losses = []
    for batch in batches:
        loss = loss_of(model, batch, dtype)
        steps[way](loss * weight)
        losses.append(loss.detach())
    return comm.allreduce(torch.stack(losses).cpu()) / world_size


# %%
# %%px
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
    "MNIST, a small learning rate": (small_mlp, pairs * 8, SMALL_RATE, 1.0),
    "MNIST, a small loss": (small_mlp, pairs * 8, SMALL_LOSS, 2.0**-19),
    "GPT, a small loss, Adam": (small_gpt, lines, ADAM, 2.0**-20),
}
POINTS = 8  # of each curve; on MNIST, each is the mean of one epoch


# %%
# %%px --timeout 200
def averaged(losses):
    """Return the means of `POINTS` parts up to the first NaN, or else the first loss alone."""
    means = losses.view(POINTS, -1).mean(1).tolist()
    return list(itertools.takewhile(math.isfinite, means)) or [losses[0].item()]


def all_ways(setting):
    return {name: averaged(losses_of(*way, *SETTINGS[setting])) for name, way in WAYS.items()}


curves = {setting: all_ways(setting) for setting in SETTINGS if "MNIST" in setting}

# %%
# %%px --timeout 200
curves |= {setting: all_ways(setting) for setting in SETTINGS if "GPT" in setting}
for setting, runs in curves.items():
    start, end = runs["float32"][0], runs["float32"][-1]
    for name, points in runs.items():
        learned = (start - points[-1]) / (start - end)
        how = "learns as float32 does" if learned > 0.95 else "falls behind"
        if len(points) < POINTS:
            how = "is NaN"
        if rank == 0:
            print(f"{setting}: {name} {how}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
every = {setting: len(SETTINGS[setting][1]) // POINTS for setting in curves}
title = "Small steps need master weights; small gradients need a scale"
drawn, axes = plots.ending_curves(title, curves, POINTS, every)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# On the left, both pure ways stall: the updates vanish, and bfloat16 loses more of them, because its mantissa has three fewer bits.
# Master weights solve this in both formats. In the middle, float16 fails without a scale, with and without master weights: most
# gradients become zero in the backward pass, and the others are rounded to multiples of the smallest half. Pure bfloat16 learns,
# because the steps are large, and nothing underflows with the exponents of float32. On the right, the same happens, and pure float16
# fails in the first step: Adam's second moment is a thousandth of the gradient's *square*, which is zero in halves, and so is
# $\epsilon$. Adam then divides by zero. (Pure bfloat16 learns there, too, a little behind the others. Adam's steps are as long as
# the learning rate, which is large compared with such small weights.)
# </details>
#
# ## Half of the bytes, on a slow link
#
# If all ranks are on one machine, messages go through its memory, and 16 bits save little time. So the next cell emulates a network
# with one rank on each node, and all-reduces a million numbers on it.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
from parlab.network import Link, Network, emulated_group

link = Link.of(alpha=1e-4, bandwidth=50e6)
network = Network(nodes=world_size, ranks_per_node=1, inside=link, between=link)
slow = emulated_group(network)


def summed(dtype):
    return partial(dist.all_reduce, torch.zeros(2**20, dtype=dtype), group=slow)


sums = {dtype: summed(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)}
times = timing.fastest_seconds(sums, comm, rounds=5, warm_up=0)
if rank == 0:
    for dtype, seconds in times.items():
        print(f"emulated: an all-reduce in {str(dtype)[6:]:8} takes {1e3 * seconds:4.0f} ms")

# %% [markdown]
# # Against the library
#
# PyTorch keeps the parameters in float32, and `torch.autocast` converts them when a function uses them. It computes products in
# 16 bits and losses in float32. On GPUs, it also computes norms and softmax in float32. So the parameters themselves are the
# master weights. `torch.amp.GradScaler` has the rule of exercise 7. The next cells train the same MLP on the same batches with your code
# and with PyTorch's, both on the default group. The scale starts far too high and grows after four
# good steps.

# %%
# %%px --timeout 100
from parlab.libraries.amp import AutocastTraining

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
        loss = F.cross_entropy(self.model(x.half()).float(), y)
        mixed_step(self.weights, self.scaler, loss, math.inf, self.on)
        return loss.item(), self.scaler.scale


# %%
# %%px --timeout 100
sides = {
    "ours": Ours(dist.group.WORLD),
    "library": AutocastTraining(fresh_model(), lr=0.1, scale=START, growth_interval=INTERVAL),
}
own_pairs = [(x[rank::world_size], y[rank::world_size]) for x, y in pairs] * 2
results = {name: [side.step(*pair) for pair in own_pairs] for name, side in sides.items()}
losses = {name: [loss for loss, _ in found] for name, found in results.items()}
scales = {name: [scale for _, scale in found] for name, found in results.items()}
skipped = sum(after < before for before, after in itertools.pairwise([START, *scales["library"]]))
if rank == 0:
    print(f"the library's scales and skips, step by step: {scales['ours'] == scales['library']}")
    print(f"some steps are skipped: {skipped > 2}")
    training.print_same({"MLP": losses}, 0.02)

# %% tags=["nbval-ignore-output"]
# %%px
if device.type == "cpu":
    sides["ours on group"] = Ours(group)
calls = {name: partial(side.step, *own_pairs[0]) for name, side in sides.items()}
seconds = timing.median_seconds(calls, comm, rounds=20, warm_up=4)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
ratios = timing.relative_to("library", seconds)
drawn, axes = plots.ratio_bars(
    "Time of our step, relative to the library's",
    {"MLP": ratios},
    "time / time of autocast, GradScaler, and DDP on the default group",
)
print(f"{skipped} of {len(own_pairs)} steps skipped; ", end="")
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))

# %% [markdown]
# What to look for:
#
# - **The same rule.** Both start too high, and halve the scale step by step without changing a weight. Then they try a higher scale
#   in every fifth step.
# - **No gain in speed.** Many CPUs multiply float16 numbers more slowly than float32 numbers, and in a model as small as this one,
#   calls take most of the time. On a GPU, products in 16 bits are several times as fast as in float32.
# - **Where the casts are.** Autocast keeps some operations in float32. The parameters are float32, so `DistributedDataParallel`
#   sends their gradients in float32. You sent halves. Its hook `fp16_compress_hook` also sends halves, and divides before the sum.
#
# # Going further
#
# - Round at random: round up with a probability that depends on how near the upper number is. Can 16-bit weights learn without a
#   copy then?
# - Which `eps` would save pure float16 with Adam? How does it change the steps?
# - Decode `torch.float8_e4m3fn` as in exercise 1, and find its largest number. Which scale does a tensor need? Which scale does a
#   block of 32 of its numbers need?
