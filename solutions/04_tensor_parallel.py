# %% [markdown]
# # Lab 04: Tensor parallelism
#
# Data parallelism and ZeRO share out the samples; every rank computes whole layers. Here the ranks
# share a *layer*: each holds some columns or rows of its weights, and computes on the same samples.
# You cut a transformer so that a layer needs four all-reduces and no more, train the small GPT along
# the curve of one rank, and then shard the sequence too, and **measure what each rank sends and
# keeps, beside the formula**.
#
# | | |
# |---|---|
# | **You will be able to** | write f and g; cut a matrix product by columns and by rows; cut an MLP, attention by heads, embedding and cross-entropy by vocabulary; say where ranks must draw alike and where not; shard the sequence; predict bytes sent and kept |
# | **Time** | 135 minutes |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or the knowledge of what an all-reduce is and what a transformer's layer computes. No GPU |
# | **Background** | [chapter 04](../book/04_tensor_parallel.md) of the book explains what you build here |
#
# Start the ranks: four processes, each with a Python of its own. Cells that begin with `%%px` run
# on all of them, other cells in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import copy
import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models
from parlab.checks import tensor_parallel as check
from parlab.costs import tensor_parallel as costs
from parlab.data import mnist, text
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# Everything here speaks through `torch.distributed`, on the `group` that a function is given:
# `group.rank()` and `group.size()` are this rank's number and how many there are. All ranks have the
# same samples, and start from the same model. If you are stuck on an exercise,
# `use_reference("its_name")` in a `%%px` cell puts a solution in its place, and you go on.
#
# Sizes that do not divide by the number of ranks are refused: a `ValueError` that names them, raised
# on every rank before anything is sent.
#
# # Part A: a layer on several ranks
#
# ## 1. f and g
#
# *Difficulty 2/5, 10 minutes.*
#
# Autograd knows nothing of other ranks. Two functions tell it, and each is the other's mirror:
#
# | | forward | backward |
# |---|---|---|
# | **f**, where a parallel part begins | nothing: all ranks have the same input | all-reduce: each rank has found a part of the input's gradient |
# | **g**, where it ends | all-reduce: each rank has a part of the output | nothing: all ranks have the same gradient |
#
# - The sum is over all ranks of `group`.
# - What comes in stays as it is: the tensor that f or g is given, and the gradient.
# - Any shape and any float dtype. A tensor's memory need not be in the order of its indices
#   (`x.transpose(1, 2)`), and on each rank it may be in another one; Gloo and NCCL add up memory as it
#   lies. Hand the all-reduce a contiguous copy.
# - Only this: an f that does nothing forward sends nothing there either.
#
# **Predict**: the loss is the sum of `g(f(x) * w)`, with another `w` on each rank. What is the
# gradient of `x`, and what would it be without f?
#
# <details><summary>Hint 1</summary>
#
# `total = x.clone(memory_format=torch.contiguous_format)`, and an all-reduce of that.
# </details>
#
# <details><summary>Hint 2</summary>
#
# What `forward` puts into `ctx` (as `ctx.group = group`), `backward` finds there. `backward` returns
# one value for each argument of `forward` after `ctx`: the gradient, and None for the group.
# </details>


# %% tags=["exercise"] exercise="f_and_g"
# %%px
class CopyToRanks(torch.autograd.Function):
    """Megatron's f: the same tensor forward; the sum of the ranks' gradients backward."""

    @staticmethod
    def forward(ctx, x, group):
        # BEGIN SOLUTION
        ctx.group = group
        return x.view_as(x)
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
        # END SOLUTION


class ReduceFromRanks(torch.autograd.Function):
    """Megatron's g: the sum of the ranks' tensors forward; the same gradient backward."""

    @staticmethod
    def forward(ctx, x, group):
        # BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        return gradient, None
        # END SOLUTION


def f_and_g(group: dist.ProcessGroup):
    """Megatron's f and g over the ranks of `group`: two functions from a tensor to a tensor."""
    return (
        lambda x: CopyToRanks.apply(x, group),
        lambda x: ReduceFromRanks.apply(x, group),
    )


# %% tags=["check"] exercise="f_and_g" points=3
# %%px
check.f_and_g(f_and_g)


# %% tags=["hidden-check"] exercise="f_and_g" points=1
# %%px --timeout 20
def through(size):
    f, g = f_and_g(group)
    x = torch.arange(float(size), device=device, requires_grad=True)
    part = f(x) * (rank + 1)
    y = g(part).square() + f(x)
    (y * torch.arange(size, device=device)).sum().backward()
    return [part.tolist(), y.tolist(), x.grad.tolist()]


check.show_values(small=through(3), one=through(1), none=through(0))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The sum of all ranks' `w`. Without f it is the rank's own `w`: a part of the gradient, another one
# on each rank, and nothing fails.
# </details>
#
# ## 2. A product cut by columns
#
# *Difficulty 2/5, 10 minutes.*
#
# A linear layer computes $XA + b$. Each rank takes some columns of $A$, and has some columns of the
# result: nobody needs to send anything forward. PyTorch keeps $A$ transposed, so columns of $A$ are
# *rows* of `linear.weight` (outputs, inputs).
#
# - `__init__`: `self.weight` is a parameter with this rank's outputs, `self.bias` with its part of the
#   bias, or None where the layer has none. They have **memory of their own**: who keeps a view keeps
#   the whole layer. `linear` stays as it is.
# - Rank $r$ has the $r$-th of N equal parts. But a layer may compute several things at once: Q, K and
#   V are often one product. Then `sections` says how many outputs belong to each, in order, and each
#   section is cut into N parts by itself.
# - A section that N does not divide is refused: `ValueError`, before anything is sent.
# - `forward(x)`: x (…, inputs) is the same on all ranks; returns this rank's outputs (…, outputs/N),
#   in the order of the sections. In the backward pass, x's gradient must be whole again.
#
# **Predict**: 12 outputs are Q, K and V, four each, on 2 ranks. Which outputs has rank 0, and which
# would it have without `sections`?
#
# <details><summary>Hint 1</summary>
#
# `tensor.split(sections)` gives the sections, `section.chunk(n)[r]` a rank's part of one, and
# `torch.cat` lays parts one after the other, in new memory.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `f, _ = f_and_g(self.group)` and `F.linear(f(x), self.weight, self.bias)`.
# </details>


# %% tags=["exercise"] exercise="column_parallel_linear"
# %%px
class ColumnParallelLinear(nn.Module):
    """This rank's outputs of `linear`; `sections` (default: one) are cut each by itself."""

    def __init__(
        self, linear: nn.Linear, group: dist.ProcessGroup, sections: list[int] | None = None
    ) -> None:
        super().__init__()
        self.group = group
        # BEGIN SOLUTION
        sections = sections or [linear.out_features]
        if any(outputs % group.size() for outputs in sections):
            raise ValueError(f"{sections} outputs do not divide over {group.size()} ranks")

        def own(tensor):
            parts = tensor.detach().split(sections)
            return nn.Parameter(torch.cat([p.chunk(group.size())[group.rank()] for p in parts]))

        self.weight = own(linear.weight)
        self.bias = None if linear.bias is None else own(linear.bias)
        # END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # BEGIN SOLUTION
        f, _ = f_and_g(self.group)
        return F.linear(f(x), self.weight, self.bias)
        # END SOLUTION


# %% tags=["check"] exercise="column_parallel_linear" points=3
# %%px
check.column_parallel_linear(ColumnParallelLinear)


# %% tags=["hidden-check"] exercise="column_parallel_linear" points=1
# %%px --timeout 20
def counted(inputs, outputs, bias=True):
    """A layer whose weights count up."""
    layer = nn.Linear(inputs, outputs, bias=bias, device=device)
    for parameter in layer.parameters():
        numbers = torch.arange(1.0, parameter.numel() + 1, device=device)
        parameter.data = numbers.view_as(parameter)
    return layer


def passed(layer, x):
    """Output, x's gradient and the parameters' gradients of a layer, as lists."""
    x.requires_grad_()
    y = layer(x)
    (y * torch.arange(1.0, y.shape[-1] + 1, device=device)).sum().backward()
    gradients = {name: p.grad.flatten().tolist() for name, p in layer.named_parameters()}
    return [y.tolist(), x.grad.tolist(), gradients]


def refused(make):
    """Whether it is refused as the lab asks for."""
    try:
        make()
    except Exception as error:
        return isinstance(error, ValueError)
    return False


def column_refused(*sections):
    layer = counted(1, sum(sections))
    return refused(lambda: ColumnParallelLinear(layer, group, list(sections)))


check.show_values(
    first=column_refused(2 * world_size + 1, world_size),
    last=column_refused(world_size, 2 * world_size + 1),
    plain=passed(
        ColumnParallelLinear(counted(2, world_size), group), torch.ones(3, 2, device=device)
    ),
    sections=passed(
        ColumnParallelLinear(
            counted(1, 4 * world_size, bias=False), group, [world_size, 2 * world_size, world_size]
        ),
        torch.ones(1, 2, 1, device=device),
    ),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 0 and 1 (Q), 4 and 5 (K), 8 and 9 (V). Without: 0 to 5, which are all of Q and half of K. Shapes
# are the same, and so nothing complains.
# </details>
#
# ## 3. A product cut by rows
#
# *Difficulty 2/5, 10 minutes.*
#
# The other way: each rank has some of the *inputs* and the rows of $A$ that they meet (columns of
# `linear.weight`). Each has a product of full shape, which is a part of the sum.
#
# - `__init__`: `self.weight` (outputs, inputs/N), in memory of its own; `self.bias` whole, a copy, or
#   None. Inputs that N does not divide are refused with a `ValueError`.
# - `forward(x)`: x (…, inputs/N) is this rank's part of the input; returns the layer's whole output,
#   the same on all ranks.
#
# **Predict**: somebody hands the bias to `F.linear` on each rank. What comes out?
#
# <details><summary>Hint 1</summary>
#
# `linear.weight.detach().chunk(n, dim=1)[r].clone()`: a chunk along dimension 1 is a view.
# </details>
#
# <details><summary>Hint 2</summary>
#
# The product without the bias; g; then the bias, once.
# </details>


# %% tags=["exercise"] exercise="row_parallel_linear"
# %%px
class RowParallelLinear(nn.Module):
    """`linear` where each rank has some of the inputs: the whole output, on every rank."""

    def __init__(self, linear: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        # BEGIN SOLUTION
        if linear.in_features % group.size():
            raise ValueError(f"{linear.in_features} inputs do not divide over {group.size()} ranks")
        own = linear.weight.detach().chunk(group.size(), dim=1)[group.rank()]
        self.weight = nn.Parameter(own.clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())
        # END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # BEGIN SOLUTION
        _, g = f_and_g(self.group)
        y = g(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias
        # END SOLUTION


# %% tags=["check"] exercise="row_parallel_linear" points=3
# %%px
check.row_parallel_linear(RowParallelLinear)


# %% tags=["hidden-check"] exercise="row_parallel_linear" points=1
# %%px --timeout 20
def row_alone():
    """A layer of which the serial one is lost."""
    linear = counted(2 * world_size, 3)
    layer = RowParallelLinear(linear, group)
    for parameter in linear.parameters():
        parameter.data.zero_()
    return layer


check.show_values(
    refused=refused(lambda: RowParallelLinear(counted(world_size + 1, 2), group)),
    bias=passed(row_alone(), torch.ones(2, 2, device=device)),
    none=passed(
        RowParallelLinear(counted(world_size, 1, bias=False), group),
        torch.ones(1, 2, 1, device=device),
    ),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The sum of all ranks' outputs, with N times the bias in it.
# </details>
#
# ## 4. An MLP with one all-reduce each way
#
# *Difficulty 2/5, 5 minutes.*
#
# Columns, then rows: the first layer leaves each rank with the part of the hidden numbers that the
# second wants from it. Between them is a function of single numbers, which each rank applies to its
# own. Nothing is sent between the two.
#
# `mlp` is `nn.Sequential(first, activation, second)`, and nobody uses it afterwards. Return the same on this
# rank's share, an `nn.Sequential` of three as well, so that parameters keep their names (`"0.weight"`, …). The two
# classes are arguments, since part C brings others.
#
# **Predict**: the other way round, rows and then columns. How many all-reduces (or gathers) would
# that take forward, and what would the activation see?
#
# <details><summary>Hint 1</summary>
#
# `first, activation, second = mlp` unpacks it.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `nn.Sequential(column(first, group), activation, row(second, group))`.
# </details>


# %% tags=["exercise"] exercise="parallel_mlp"
# %%px
def parallel_mlp(
    mlp: nn.Sequential,
    group: dist.ProcessGroup,
    column=ColumnParallelLinear,
    row=RowParallelLinear,
) -> nn.Sequential:
    """This rank's share of `mlp`: same input and output on all ranks, hidden numbers shared out."""
    # BEGIN SOLUTION
    first, activation, second = mlp
    return nn.Sequential(column(first, group), activation, row(second, group))
    # END SOLUTION


# %% tags=["check"] exercise="parallel_mlp" points=2
# %%px
check.parallel_mlp(parallel_mlp)


# %% tags=["hidden-check"] exercise="parallel_mlp" points=1
# %%px --timeout 20
def mlp_values():
    mlp = nn.Sequential(counted(2, 2 * world_size), nn.ReLU(), counted(2 * world_size, 2))
    ledger = Ledger()
    with ledger:
        x = torch.tensor([[2.0, -1.0], [-2.0, 0.75], [0.125, 0.125]], device=device)
        values = passed(parallel_mlp(mlp, group), x)  # hidden numbers of both signs
    return [values, ledger.count("all_reduce") <= 2, ledger.bytes_sent() <= 2 * 3 * 2 * 4]


check.show_values(mlp=mlp_values())

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The activation wants whole numbers, and a rank has a part of the sum: gelu(a + b) is not gelu(a) +
# gelu(b). So an all-reduce before it, and a gather at the end: two, and the wider one first.
# </details>
#
# MNIST with it: the first two layers of the MLP are a pair; the last one, of ten outputs, stays whole
# on every rank. SGD and Adam, beside a plain loop on one rank.

# %%
# %%px --timeout 100
images, labels = (torch.from_numpy(part).to(device) for part in mnist("train", limit=2560))
optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
}


def losses_of(model, loss_of, make_optimizer, batches):
    """Train; the loss of each step."""
    optimizer, losses = make_optimizer(model.parameters()), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        if hasattr(model, "finish"):  # part C
            model.finish()
        optimizer.step()
        losses.append(loss.item())
    return losses


def classified(model, x, y):
    return F.cross_entropy(model(x), y)


def gap(losses, others):
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


width = 64 * world_size
image_batches = list(zip(images.split(256), labels.split(256), strict=True))
image_curves = {}
for name, make_optimizer in optimizers.items():
    torch.manual_seed(0)
    serial = models.mlp(width).to(device)
    pair = parallel_mlp(copy.deepcopy(serial[1:4]), group)
    shared = nn.Sequential(serial[0], *pair, serial[4], copy.deepcopy(serial[5]))
    alone = losses_of(serial, classified, make_optimizer, image_batches)
    together = losses_of(shared, classified, make_optimizer, image_batches)
    image_curves[name] = {"one rank": alone, "tensor parallel": together}
    if rank == 0:
        print(f"{name}: the losses of one rank, step by step: {gap(alone, together) < 1e-4}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.same_curves(
    "One curve: the MLP on one rank, and shared out", image_curves, "loss over the batch"
)

# %% [markdown]
# ## 5. What does a layer send?
#
# *Difficulty 2/5, 5 minutes.*
#
# A transformer layer is attention and an MLP, and attention will be cut like the MLP: columns at its
# beginning, rows at its end.
#
# **Predict in numbers**, in float32, for a batch of `batch` samples with `sequence` tokens and a layer
# of size `hidden`, forward and backward together:
#
# - `all_reduces`: how many of them a layer makes (on one rank, the same or none);
# - `bytes`: what one of them reduces, the bytes that each rank hands in;
# - `sent`: the bytes that a rank sends for the layer in all, where each all-reduce goes around a ring;
# - `weights`: the bytes that it would take, instead, to gather the layer's 12h² weights once (the
#   biases and norms left aside), on a ring: (N−1)/N of them.
#
# The check compares with an f and a g that it measures; at the end of part B you measure your own.


# %% tags=["exercise"] exercise="predict_layer"
# %%px
def predict_layer(batch: int, sequence: int, hidden: int, world_size: int) -> dict[str, float]:
    """`all_reduces`, `bytes`, `sent` and `weights` of a transformer layer in float32."""
    # BEGIN SOLUTION
    size = 4 * batch * sequence * hidden
    share = (world_size - 1) / world_size
    return {
        "all_reduces": 4,
        "bytes": size,
        "sent": 4 * 2 * share * size,
        "weights": share * 4 * 12 * hidden**2,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_layer" points=1
# %%px
check.predict_layer(predict_layer)

# %% tags=["hidden-check"] exercise="predict_layer" points=1
# %%px --timeout 20
five, alone = predict_layer(3, 50, 40, 5), predict_layer(1, 10, 20, 1)
check.show_values(
    all_reduces=round(five["all_reduces"]),
    **{name: [round(p[name]) for p in (five, alone)] for name in ("bytes", "sent", "weights")},
)

# %% [markdown]
# # Part B: a GPT
#
# ## 6. Attention by heads
#
# *Difficulty 3/5, 15 minutes.*
#
# Heads know nothing of each other until the output projection mixes them. So each rank takes some
# heads: their columns of Q, K and V, and the rows of the output projection that they meet.
#
# `models.Attention` is the attention of the small GPT. Its `qkv` is one layer whose outputs are all
# heads' queries, then the keys, then the values: `attention.sections` says how many of each. With
# *grouped* queries there are fewer keys and values: `attention.key_value_heads`. Its forward pass
# only asks `self.qkv`, `self.heads`, `self.key_value_heads`, `self.head_size` and `self.out`: give it this rank's share of
# them, and it works as it is.
#
# - Change `attention` in place, and return it.
# - Heads, or key-value heads, that N does not divide are refused with a `ValueError` that says so;
#   `attention` is unchanged then. (A rank with half a head would be wrong, and no shape would tell.)
#
# **Predict**: 12 heads, 4 key-value heads, on 4 ranks. Which heads read which keys, on rank 1? And on
# 8 ranks?
#
# <details><summary>Hint 1</summary>
#
# `column(attention.qkv, group, attention.sections)`, before the number of heads is changed:
# `sections` is computed from it.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Then `attention.out`, by rows; then `attention.heads //= n` and `attention.key_value_heads //= n`.
# `head_size` stays what it is.
# </details>


# %% tags=["exercise"] exercise="parallel_attention"
# %%px
def parallel_attention(
    attention: models.Attention,
    group: dist.ProcessGroup,
    column=ColumnParallelLinear,
    row=RowParallelLinear,
) -> models.Attention:
    """Leave this rank's heads in `attention`; input and output are the same on all ranks."""
    # BEGIN SOLUTION
    if attention.heads % group.size() or attention.key_value_heads % group.size():
        raise ValueError(
            f"{attention.heads} heads with {attention.key_value_heads} heads of keys and values "
            f"do not divide over {group.size()} ranks"
        )
    attention.qkv = column(attention.qkv, group, attention.sections)
    attention.out = row(attention.out, group)
    attention.heads //= group.size()
    attention.key_value_heads //= group.size()
    return attention
    # END SOLUTION


# %% tags=["check"] exercise="parallel_attention" points=3
# %%px
check.parallel_attention(parallel_attention)


# %% tags=["hidden-check"] exercise="parallel_attention" points=1
# %%px --timeout 20
def attended(heads, key_value_heads, head_size=2):
    hidden = head_size * heads
    config = models.GPTConfig(hidden_size=hidden, heads=heads, key_value_heads=key_value_heads)
    torch.manual_seed(5)
    attention = models.Attention(config).double().to(device)
    torch.manual_seed(6)
    x = torch.randn(2, 3, hidden, dtype=torch.float64).to(device).requires_grad_()
    try:
        y = parallel_attention(attention, group)(x)
    except ValueError:
        return ["refused", type(attention.qkv).__name__]
    y.square().sum().backward()
    shown = [*y[0, 2, :4].tolist(), *x.grad[1, 0, :4].tolist()]
    return [f"{value:.5f}" for value in shown]


check.show_values(
    plain=attended(2 * world_size, None),
    grouped=attended(4 * world_size, 2 * world_size),
    few=attended(2 * world_size + 1, 1),
    # Sizes divide, heads do not.
    halves=attended(world_size + 1, world_size + 1, world_size),
    half_keys=attended(2 * world_size, 1, world_size),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Rank 1 has heads 3, 4 and 5, which all read key-value head 1: it has that one as well. On 8 ranks
# keys and values would have to be on two ranks each; here that is refused.
# </details>
#
# ## 7. Embedding by vocabulary
#
# *Difficulty 3/5, 10 minutes.*
#
# The embedding is the largest table of a small model. Rank $r$ takes the $r$-th part of its rows:
# tokens $rV/N$ to $(r+1)V/N - 1$. Each token is in one rank's part; that rank knows its row, all others contribute zeros,
# and g adds up.
#
# - `self.weight` (V/N, h): a parameter in memory of its own. A vocabulary that N does not divide is
#   refused with a `ValueError`. (Real ones are padded until it does.)
# - `forward(tokens)`: tokens (batch, seq) int64, the same on all ranks; `tokens` stays as it is.
#   Returns (batch, seq, h), the same on all ranks.
# - A rank's weight gets the gradient of its own tokens only: what is looked up for another rank's
#   token leaves no trace.
# - `reduce` is what adds up the ranks' parts; g, where it is None.
#
# **Predict**: the mask is forgotten, and tokens of other ranks are clamped to this rank's range.
# What comes out?
#
# <details><summary>Hint 1</summary>
#
# `local = tokens - first`; `inside = (local >= 0) & (local < V // N)`. Look up `local` where it is
# inside and 0 elsewhere; then put zeros into the rows of the others.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `rows = F.embedding(local * inside, self.weight) * inside.unsqueeze(-1)`; then `reduce(rows)`.
# </details>


# %% tags=["exercise"] exercise="vocabulary_embedding"
# %%px
class VocabularyEmbedding(nn.Module):
    """`embedding` with this rank's part of the vocabulary: whole rows, the same on all ranks."""

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup, reduce=None) -> None:
        super().__init__()
        self.group = group
        self.reduce = reduce or f_and_g(group)[1]
        # BEGIN SOLUTION
        if embedding.num_embeddings % group.size():
            raise ValueError(
                f"{embedding.num_embeddings} tokens do not divide over {group.size()} ranks: pad "
                "the vocabulary"
            )
        own = embedding.weight.detach().chunk(group.size())[group.rank()]
        self.weight = nn.Parameter(own.clone())
        # END SOLUTION

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        # BEGIN SOLUTION
        count = len(self.weight)
        local_BS = tokens_BS - self.group.rank() * count
        inside_BS = (local_BS >= 0) & (local_BS < count)
        rows_BSH = F.embedding(local_BS * inside_BS, self.weight) * inside_BS.unsqueeze(-1)
        return self.reduce(rows_BSH)
        # END SOLUTION


# %% tags=["check"] exercise="vocabulary_embedding" points=3
# %%px
check.vocabulary_embedding(VocabularyEmbedding)


# %% tags=["hidden-check"] exercise="vocabulary_embedding" points=1
# %%px --timeout 20
def embedded():
    embedding = nn.Embedding(3 * world_size, 2, device=device)
    embedding.weight.data = (
        torch.arange(6.0 * world_size, device=device).view(3 * world_size, 2) + 1
    )
    layer = VocabularyEmbedding(embedding, group)
    embedding.weight.data.zero_()  # the serial one is lost
    last = 3 * world_size - 1
    rows = layer(torch.tensor([[0, last, 2], [0, min(3, last), last]], device=device))
    (rows * torch.arange(1.0, 7, device=device).view(3, 2)).sum().backward()
    return [rows.tolist(), layer.weight.tolist(), layer.weight.grad.tolist()]


check.show_values(
    rows=embedded(),
    refused=refused(
        lambda: VocabularyEmbedding(nn.Embedding(world_size + 1, 2, device=device), group)
    ),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The sum of N rows, one of which is right and N − 1 the first or last row of a part: a number in
# every place, and a loss that falls at first.
# </details>
#
# ## 8. Cross-entropy without the logits
#
# *Difficulty 4/5, 15 minutes.*
#
# The output layer, cut by columns, leaves each rank with the scores of its own part of the vocabulary. Gathering
# them would send $V$ numbers for each token. The loss of a token needs three:
#
# $$ \ell = \log \sum_v e^{x_v - \hat x} + \hat x - x_\text{target}, \qquad \hat x = \max_v x_v $$
#
# The maximum, the sum, and the target's score: each rank finds its part, and the ranks combine
# them. Three all-reduces of one number a token.
#
# - `scores` (…, V/N) are this rank's; `targets` (…) int64, the same on all ranks. Neither is changed.
# - Returns the mean loss over all tokens, of shape (), the same on all ranks.
# - The gradient of `scores` is that of the whole softmax, this rank's part of it.
# - Scores may be large, ±1000: subtract the maximum, and *the same* on all ranks, or the ranks' sums do not
#   belong together. Over all of the vocabulary: one rank's scores may be far below another's.
# - Forward, no more than three collectives, and nothing of the size of the vocabulary in them; backward,
#   nothing is sent.
#
# **Predict**: 8,192 tokens and a vocabulary of 51,200 in float32. How many bytes does an all-gather
# of the logits hand to each rank, and how many do three all-reduces?
#
# <details><summary>Hint 1</summary>
#
# The maximum needs no gradient (`scores.detach()`, and `dist.all_reduce(highest, dist.ReduceOp.MAX, group)`):
# any number in its place gives the same loss. The two sums do need one: g adds up, and knows the way back.
# </details>
#
# <details><summary>Hint 2</summary>
#
# As in the embedding, `local` and `inside` say whether a token's target is this rank's. Then
# `scores.gather(-1, index)` picks it, and zero takes its place elsewhere.
# </details>


# %% tags=["exercise"] exercise="vocabulary_cross_entropy"
# %%px
def vocabulary_cross_entropy(
    scores: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """The mean cross-entropy, where each rank has the scores of its part of the vocabulary."""
    # BEGIN SOLUTION
    _, g = f_and_g(group)
    highest = scores.detach().amax(dim=-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    shifted = scores - highest.unsqueeze(-1)
    total = g(shifted.exp().sum(dim=-1))
    local = targets - group.rank() * scores.shape[-1]
    inside = (local >= 0) & (local < scores.shape[-1])
    own = shifted.gather(-1, (local * inside).unsqueeze(-1)).squeeze(-1)
    return (total.log() - g(own * inside)).mean()
    # END SOLUTION


# %% tags=["check"] exercise="vocabulary_cross_entropy" points=4
# %%px
check.vocabulary_cross_entropy(vocabulary_cross_entropy)


# %% tags=["hidden-check"] exercise="vocabulary_cross_entropy" points=1
# %%px --timeout 20
def entropy(scale, low=0.0):
    torch.manual_seed(3)
    whole = torch.randn(2, world_size + 1, 3 * world_size, dtype=torch.float64) * scale
    whole[1, -1] -= low  # one token far below the others
    scores = whole.to(device).chunk(world_size, dim=-1)[rank].clone().requires_grad_()
    # The first and the last token of each rank's part, and one within.
    targets = torch.tensor([[*range(r, 3 * world_size, 3), 1] for r in (0, 2)], device=device)
    ledger = Ledger()
    with ledger:
        loss = vocabulary_cross_entropy(scores, targets, group)
        loss.backward()
    gradient = [f"{value:.6f}" for value in scores.grad.flatten().tolist()]
    return [f"{loss.item():.6f}", gradient, ledger.count() <= 3]


check.show_values(small=entropy(1.0), large=entropy(500.0), low=entropy(1.0, 950.0))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 8,192 × 51,200 × 4 bytes: 1.7 GB. Three times 8,192 × 4 bytes: 98 kB, 17,000 times less.
# </details>
#
# ## 9. Draw alike, draw apart
#
# *Difficulty 2/5, 5 minutes.*
#
# Dropout draws a mask. Where all ranks hold the same tensor (after g), they must draw the same mask,
# or their copies drift apart. Where each holds its own part (between columns and rows; and the weights that a rank
# draws for its own part), they must draw different ones, or the parts are tied to each other. So a rank needs two generators.
#
# - `together`: the same numbers on all ranks. `apart`: others on each rank, and not those of `together`.
# - Both follow from `seed` and the rank's number in `group` alone, so that a run can be repeated. Another
#   seed gives other numbers, on all ranks: rank 1 of this run draws `apart` nothing that rank 0 draws in
#   the run with the next seed, and nothing that `together` draws in any other run. Seeds are small, and
#   0 is one of them.
# - No stream is the further course of another: each generator has a seed of its own. On a CPU torch takes
#   the lowest 32 bits of a seed and leaves the others.
# - `torch.Generator(device)`, seeded; leave torch's global generator alone.
#
# **Predict**: with the same mask on all four shards of the hidden numbers, p = 0.5: how large is the
# variance of the number of hidden numbers that are kept, over what it should be?
#
# <details><summary>Hint 1</summary>
#
# `torch.Generator(device).manual_seed(number)` returns the generator.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which numbers? `together` can take the seed. `apart` needs one for each pair of seed and rank, that no
# other pair and no `together` has, in 32 bits: count the pairs, and begin high up.
# </details>


# %% tags=["exercise"] exercise="dropout_generators"
# %%px
def dropout_generators(
    seed: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[torch.Generator, torch.Generator]:
    """Generators on `device`: `together`, alike on all ranks; `apart`, another on each rank."""
    # BEGIN SOLUTION
    together = torch.Generator(device).manual_seed(seed)
    # In the upper half of 32 bits, a number for each seed and rank: no other run draws it.
    apart = torch.Generator(device).manual_seed(2**31 + seed * group.size() + group.rank())
    return together, apart
    # END SOLUTION


# %% tags=["check"] exercise="dropout_generators" points=2
# %%px
check.dropout_generators(dropout_generators)


# %% tags=["hidden-check"] exercise="dropout_generators" points=1
# %%px --timeout 20
def streams(seed):
    """Which generators of all ranks begin alike, for this seed and the next."""
    made = [g for s in (seed, seed + 1) for g in dropout_generators(s, group, device)]
    begin = [torch.rand(4, generator=g, device=device).tolist() for g in made]
    every = [one for begins in comm.allgather(begin) for one in begins]
    return [[a == b for b in every] for a in every]


def distinct():
    """How many streams the runs of a hundred seeds have."""
    made = [g for seed in range(100) for g in dropout_generators(seed, group, device)]
    begin = [torch.rand(2, generator=g, device=device).tolist() for g in made]
    return len({tuple(one) for begins in comm.allgather(begin) for one in begins})


def moved():
    """Whether torch's global generator is another than before."""
    before = torch.get_rng_state()
    dropout_generators(7, group, device)
    return not torch.equal(before, torch.get_rng_state())


check.show_values(moved=moved(), distinct=distinct(), alike=streams(40), zero=streams(0))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Four times: the sum of four equal masks has a variance of 4² where four independent ones have 4.
# Dropout is a stronger noise with fewer of it, and nothing shows.
# </details>
#
# ## 10. The whole GPT
#
# *Difficulty 3/5, 15 minutes.*
#
# All parts are there. A block keeps its two norms and its forward pass; attention and MLP are
# replaced. The model's embedding of tokens, and its output layer, are cut by the vocabulary.
#
# - `parallel_block(block, …)` and `parallel_gpt(model, group)` change what they are given, in place, and return it.
# - `model(tokens)` gives, on each rank, the scores of its part of the vocabulary, (batch, seq, V/N):
#   what exercise 8 wants.
# - The output layer *is* the embedding: `model.unembed.weight is model.tokens.weight`, still, and
#   the rank's part of both.
# - Norms and the embedding of positions stay whole, on every rank. Their gradients must be whole and the
#   same on all ranks, without anyone summing them. Where does that come from?
# - Parameters keep their names.
#
# <details><summary>Hint 1</summary>
#
# In a block: `block.attention = parallel_attention(block.attention, …)`, and so the MLP. `model.blocks`
# is a list; a block is changed in place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `model.unembed` is a linear layer without a bias, cut by columns: the column-parallel layer has the
# f that its input's gradient needs. Then `model.unembed.weight = model.tokens.weight` ties again.
# </details>


# %% tags=["exercise"] exercise="parallel_gpt"
# %%px
def parallel_block(
    block: models.Block,
    group: dist.ProcessGroup,
    column=ColumnParallelLinear,
    row=RowParallelLinear,
) -> models.Block:
    """Leave this rank's share of attention and MLP in `block`."""
    # BEGIN SOLUTION
    block.attention = parallel_attention(block.attention, group, column, row)
    block.mlp = parallel_mlp(block.mlp, group, column, row)
    return block
    # END SOLUTION


def parallel_gpt(model: models.GPT, group: dist.ProcessGroup) -> models.GPT:
    """Leave this rank's share in `model`; `model(tokens)` is then (batch, seq, V/N)."""
    # BEGIN SOLUTION
    for block in model.blocks:
        parallel_block(block, group)
    model.tokens = VocabularyEmbedding(model.tokens, group)
    model.unembed = ColumnParallelLinear(model.unembed, group)
    model.unembed.weight = model.tokens.weight
    return model
    # END SOLUTION


# %% tags=["check"] exercise="parallel_gpt" points=4
# %%px --timeout 90
check.parallel_gpt(parallel_gpt)


# %% tags=["hidden-check"] exercise="parallel_gpt" points=2
# %%px --timeout 30
def small_gpt():
    """A GPT in float64 that every rank can have a share of, and fewer tokens than it takes."""
    config = models.GPTConfig(
        vocab_size=3 * world_size,
        sequence_length=3 * world_size,
        hidden_size=4 * world_size,
        layers=2,
        heads=2 * world_size,
    )
    torch.manual_seed(9)
    model = models.GPT(config).double().to(device)
    model.blocks[0].norm_1.bias.requires_grad_(False)
    tokens = torch.randint(3 * world_size, (2, 2 * world_size + 1)).to(device)
    return model, tokens[:, :-1], tokens[:, 1:]


def gpt_values(parallel):
    model, tokens, targets = small_gpt()
    model, ledger = parallel(model, group), Ledger()
    with ledger:
        loss = vocabulary_cross_entropy(model(tokens), targets, group)
        loss.backward()
        if hasattr(model, "finish"):
            model.finish()
    named = sorted(dict(model.named_parameters(remove_duplicate=False)).items())
    norms = {name: f"{p.grad.norm().item():.6f}" for name, p in named if p.grad is not None}
    norms.pop("unembed.weight", None)
    return [f"{loss.item():.6f}", norms], ledger


def block_layers():
    """Whether a block comes back, and of which of two other classes its layers are."""
    column, row = (type(name, (nn.Identity,), {}) for name in ("Column", "Row"))
    block = small_gpt()[0].blocks[0]
    same = parallel_block(block, group, column, row) is block
    layers = [block.attention.qkv, block.attention.out, block.mlp[0], block.mlp[2]]
    return [same, [type(layer).__name__ for layer in layers]]


values, ledger = gpt_values(parallel_gpt)
check.show_values(values=values, block=block_layers(), calls=ledger.count() <= 4 * 2 + 1 + 1 + 3)

# %% [markdown]
# Now train it, on one rank and on all. The configuration grows with the number of ranks, so that
# everything divides.

# %%
# %%px --timeout 100
heads = world_size * -(-4 // world_size)
config = models.GPTConfig(
    vocab_size=world_size * -(-256 // world_size),
    sequence_length=world_size * -(-64 // world_size),
    hidden_size=16 * heads,
    heads=heads,
)
length = config.sequence_length + 1
windows = torch.from_numpy(text("train", 20 * 8 * length).astype("int64")).view(-1, length)
batches = [(b[:, :-1], b[:, 1:]) for b in windows.to(device).split(8)]


def serial_loss(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def shared_loss(model, tokens, targets):
    return vocabulary_cross_entropy(model(tokens), targets, group)


def fresh_gpt():
    torch.manual_seed(0)  # every rank draws the whole model, and keeps its share
    return models.GPT(config).to(device)


gpt_optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=3e-3),
}
curves = {}
for name, make_optimizer in gpt_optimizers.items():
    curves[name] = {
        "one rank": losses_of(fresh_gpt(), serial_loss, make_optimizer, batches),
        "tensor parallel": losses_of(
            parallel_gpt(fresh_gpt(), group), shared_loss, make_optimizer, batches
        ),
    }
    same = gap(*curves[name].values()) < 1e-3
    if rank == 0:
        print(f"GPT, {name}: the losses of one rank, step by step: {same}")

# %% [markdown]
# Is every gradient right, too? Cut the serial model's gradients as its weights were cut: the same
# function does both, on a model whose weights *are* the gradients.


# %%
# %%px
def largest_gap(parallel, loss_of):
    """Between this rank's gradients and its share of the serial model's, over the largest there."""
    serial, shared = fresh_gpt(), parallel(fresh_gpt(), group)
    serial_loss(serial, *batches[0]).backward()
    loss_of(shared, *batches[0]).backward()
    if hasattr(shared, "finish"):
        shared.finish()
    for parameter in serial.parameters():
        parameter.data = parameter.grad
    right = dict(parallel(serial, group).named_parameters())
    return max(
        ((p.grad - right[name]).abs().max() / right[name].abs().max()).item()
        for name, p in shared.named_parameters()
    )


worst = comm.allreduce(largest_gap(parallel_gpt, shared_loss), op=max)
if rank == 0:
    print(f"every gradient is this rank's share of the serial model's: {worst < 1e-3}")

# %% [markdown]
# And what does a layer send? Measured, over what you predicted:

# %%
# %%px
block = parallel_block(copy.deepcopy(fresh_gpt().blocks[0]), group)
x = torch.randn(8, config.sequence_length, config.hidden_size, device=device, requires_grad=True)
sent = Ledger()
with sent:
    block(x).sum().backward()
predicted = predict_layer(8, config.sequence_length, config.hidden_size, world_size)
if rank == 0:
    print(f"{sent.count('all_reduce')} all-reduces, {predicted['all_reduces']} predicted")
    if world_size > 1:
        print(f"{sent.ring_bytes():,.0f} bytes: {sent.ring_bytes() / predicted['sent']:.2f} of it")

# %% [markdown]
# ## Why inside a node
#
# Nothing hides these all-reduces: what comes next needs their result. So the link decides. The same
# two halves of a layer on an emulated cluster: f, half of a layer that takes a set time divided by the number
# of ranks, g. Once with all ranks on one node, once with each on a node of its own.
#
# **Predict**: 40 ms of computing forward and 80 backward for the whole layer on one rank; an
# all-reduce takes less than 1 ms inside the node, and some 35 ms between nodes. How long are forward
# and backward of a layer on four ranks, in both?

# %%
# %%px --timeout 60
from parlab.network import Link, Network, Stage, emulated_group

NUMBERS, FORWARD = 65_536, 40e-3
fast, slow = Link.of(alpha=1e-4, bandwidth=2e9), Link.of(alpha=5e-4, bandwidth=12.5e6)
networks = {
    "one node": Network(1, world_size, inside=fast, between=slow),
    "a node each": Network(world_size, 1, inside=fast, between=slow),
}


def half_layer(on):
    """Half of a layer: this rank's part of the work, between f and g."""
    f, g = f_and_g(on)
    part = FORWARD / 2 / world_size
    work = Stage(nn.Identity(), forward=part, backward=2 * part)
    return lambda x: g(work(f(x)))


def layer_seconds(network, rounds=5):
    """Fastest forward and backward pass of a layer: a busy machine is late, never early."""
    halves = [half_layer(emulated_group(network)) for _ in range(2)]
    seconds = []
    for _ in range(rounds):
        x = torch.ones(NUMBERS, requires_grad=True)
        comm.Barrier()
        start = time.perf_counter()
        halves[1](halves[0](x)).sum().backward()
        seconds.append(max(comm.allgather(time.perf_counter() - start)))
    return min(seconds)


times = {name: layer_seconds(network) for name, network in networks.items()}
alone = 3 * FORWARD
if rank == 0:
    wins = world_size == 1 or times["one node"] < 0.7 * alone < 0.9 * times["a node each"]
    print(f"inside a node the layer is faster than on one rank, between nodes slower: {wins}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
for name, network in networks.items():
    reduce = network.collective("all_reduce", 4 * NUMBERS).seconds
    model_time = alone / world_size + 4 * reduce
    print(
        f"{name}: {1e3 * times[name]:.0f} ms emulated, {1e3 * model_time:.0f} ms by the model; "
        f"one rank: {1e3 * alone:.0f} ms"
    )

# %% [markdown]
# # Part C: the sequence too
#
# Between g and the next f all ranks hold the same tensor and do the same work on it: norms, dropout,
# residual additions. With *sequence parallelism* each does that for its own part of the sequence. An
# all-reduce is a reduce-scatter and an all-gather: g becomes the first, f the second, and what lies
# between them is sharded. That sends the same (a quarter more where inputs are gathered again), and keeps N
# times less of what lies between.
#
# ## 11. Gather into a product, scatter out of one
#
# *Difficulty 4/5, 15 minutes.*
#
# Activations are (batch, seq/N, h) on each rank; rank $r$ has the $r$-th part of the sequence. Two
# functions, as mirrors of each other:
#
# - `scatter(x)`: x (batch, seq, h) is a part of the sum on each rank; returns this rank's part of the
#   sequence of the sum, (batch, seq/N, h). Its gradient backward: gathered from all ranks.
# - `gather_linear(x, weight, bias)`: x (batch, seq/N, h) is this rank's part of the sequence; returns
#   the product for *all* of it, (batch, seq, outputs/N). The gradient of x is, of the sum over ranks,
#   this rank's part of the sequence. `weight` and `bias` (or None) get the gradients of the whole sequence.
# - `gather_linear` **keeps only its shard** for the backward pass (`ctx.save_for_backward(x, weight)`), and
#   gathers again there: a third message, for N times less memory. That is why it is one function
#   with the product, which by itself would keep its whole input.
# - A sequence that N does not divide is refused with a `ValueError` by `scatter`, before anything is
#   sent. Any float dtype; nothing that comes in is changed.
#
# Given are `gathered` and `scattered`, which do the two collectives along dimension 1: those of torch go
# along dimension 0.
#
# **Predict**: how many bytes does a rank send for a `gather_linear` and a `scatter`, forward and
# backward, over those of an f and a g?
#
# <details><summary>Hint 1</summary>
#
# In `GatherLinear.backward`: the gradient of the whole input is `gradient @ weight`; scatter that. Of
# the weight: `gradient.flatten(0, 1).T @ whole.flatten(0, 1)`. Of the bias: the sum over all but the
# last dimension.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `backward` returns one value for each argument of `forward` after `ctx`; None for the group, and for
# a bias that is None. `Scatter.backward` returns `gathered(gradient, ctx.group), None`.
# </details>


# %% tags=["exercise"] exercise="sequence_operators"
# %%px
def gathered(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All ranks' (batch, part, …) one after the other along the sequence; no gradient."""
    parts = x.new_empty(group.size(), *x.shape)
    dist.all_gather_single(parts.flatten(0, 1), x.contiguous(), group=group)
    return parts.movedim(0, 1).flatten(1, 2)


def scattered(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """This rank's part of the sequence of the ranks' summed (batch, seq, …); no gradient."""
    parts = x.unflatten(1, (group.size(), -1)).movedim(1, 0).contiguous()
    own = torch.empty_like(parts[0])
    dist.reduce_scatter_single(own, parts.flatten(0, 1), group=group)
    return own


class Scatter(torch.autograd.Function):
    """A reduce-scatter along the sequence forward, an all-gather backward."""

    @staticmethod
    def forward(ctx, x, group):
        # BEGIN SOLUTION
        if x.shape[1] % group.size():
            raise ValueError(f"{x.shape[1]} tokens do not divide over {group.size()} ranks")
        ctx.group = group
        return scattered(x, group)
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        return gathered(gradient, ctx.group), None
        # END SOLUTION


class GatherLinear(torch.autograd.Function):
    """An all-gather along the sequence and a product forward; keeps the shard, not the whole."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        # BEGIN SOLUTION
        ctx.group, ctx.has_bias = group, bias is not None
        ctx.save_for_backward(x, weight)
        return F.linear(gathered(x, group), weight, bias)
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        x, weight = ctx.saved_tensors
        whole = gathered(x, ctx.group)
        own = scattered(gradient @ weight, ctx.group)
        of_weight = gradient.flatten(0, 1).T @ whole.flatten(0, 1)
        of_bias = gradient.sum(dim=(0, 1)) if ctx.has_bias else None
        return own, of_weight, of_bias, None
        # END SOLUTION


def sequence_operators(group: dist.ProcessGroup):
    """`gather_linear(x, weight, bias)` and `scatter(x)` over the ranks of `group`."""
    return (
        lambda x, weight, bias: GatherLinear.apply(x, weight, bias, group),
        lambda x: Scatter.apply(x, group),
    )


# %% tags=["check"] exercise="sequence_operators" points=4
# %%px
check.sequence_operators(sequence_operators)


# %% tags=["hidden-check"] exercise="sequence_operators" points=1
# %%px --timeout 20
def sequence_values(bias):
    gather_linear, scatter = sequence_operators(group)
    layer = counted(2, 3, bias=bias)
    x = (torch.arange(8.0, device=device).view(2, 2, 2) + rank).requires_grad_()
    whole = gather_linear(x, layer.weight, layer.bias)
    own = scatter(whole * (rank + 1))
    (own * torch.arange(12.0, device=device).view(2, 2, 3)).sum().backward()
    gradients = [p.grad.tolist() for p in layer.parameters()]
    return [whole.tolist(), own.tolist(), x.grad.tolist(), gradients]


uneven = torch.ones(2, world_size + 1, 3, device=device)
check.show_values(
    refused=refused(lambda: sequence_operators(group)[1](uneven)),
    with_bias=sequence_values(True),
    without=sequence_values(False),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# An f and a g: two all-reduces, 4 (N−1)/N of the bytes. A gather, a scatter, and the same the other
# way round: the same 4. Gathering again in the backward pass makes it 5: 5/4, and a
# library hides the quarter behind the product that does not need it.
# </details>
#
# ## 12. What does a layer keep?
#
# *Difficulty 2/5, 5 minutes.*
#
# For its backward pass a block of the small GPT keeps: the inputs of both norms; the inputs of the four
# linear layers (that of the second in the MLP is 4h wide); Q, K and V; the input of the GELU (4h). Attention is
# *fused*: it computes its scores again in the backward pass, and keeps its output, which is the input of a linear layer
# anyway. No dropout.
#
# **Predict in numbers**: bytes in float32 that a rank keeps of one block, small things (the norms'
# means, for one) left aside:
#
# - `serial`: on one rank;
# - `tensor_parallel`: with f and g. What is cut is between them; what lies outside is on every rank;
# - `sequence_parallel`: with `gather_linear` and `scatter`.


# %% tags=["exercise"] exercise="predict_activations"
# %%px
def predict_activations(
    batch: int, sequence: int, hidden: int, world_size: int
) -> dict[str, float]:
    """Bytes that a rank keeps of a block with `serial`, `tensor_parallel`, `sequence_parallel`."""
    # BEGIN SOLUTION
    once = 4 * batch * sequence * hidden
    return {
        "serial": 16 * once,
        "tensor_parallel": 4 * once + 12 * once / world_size,
        "sequence_parallel": 16 * once / world_size,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_activations" points=1
# %%px
check.predict_activations(predict_activations)

# %% tags=["hidden-check"] exercise="predict_activations" points=1
# %%px --timeout 20
eight, alone = predict_activations(3, 50, 40, 8), predict_activations(1, 10, 20, 1)
check.show_values(
    **{
        name: [round(p[name]) for p in (eight, alone)]
        for name in ("serial", "tensor_parallel", "sequence_parallel")
    },
)

# %% [markdown]
# ## 13. The GPT with a sharded sequence
#
# *Difficulty 4/5, 15 minutes.*
#
# Two layers take the places of their ancestors, and the blocks are cut as before. What is new:
#
# - The embedding's parts are summed *and* scattered: `reduce` is `scatter`. A rank adds the positions
#   of its own part of the sequence.
# - All blocks, and the last norm, work on (batch, seq/N, h). The output layer gathers: a rank's scores are (batch, seq,
#   V/N), as before.
# - A parameter that is **whole on every rank** but saw only a part of the sequence has only a part of its gradient:
#   norms, the biases after `scatter`, the positions. `finish()`, called after each backward pass, sums those gradients
#   over the ranks, and no others. A parameter whose `.grad` is None is left out, on all ranks alike: one that
#   is frozen, say. Before the next backward pass the gradients are set to None again.
# - A sequence that N does not divide is refused with a `ValueError`.
# - Parameters have the names that they have in `models.GPT`; the output layer is the embedding, still.
#
# **Predict**: `finish()` is forgotten. Which parameters drift apart between the ranks, and does the loss
# show it?
#
# <details><summary>Hint 1</summary>
#
# The blocks: `parallel_block(block, group, SequenceColumnLinear, SequenceRowLinear)`. For `tokens`,
# `positions`, `norm` and `unembed` do as in exercise 10, with the new classes.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which parameters are whole? Those of every `nn.LayerNorm`, the `bias` of every `SequenceRowLinear`,
# and the positions' weight: go through `self.modules()`. In `forward`,
# `self.positions.weight[:sequence].chunk(n)[r]`.
# </details>


# %% tags=["exercise"] exercise="sequence_parallel_gpt"
# %%px
class SequenceColumnLinear(ColumnParallelLinear):
    """As its ancestor; x (batch, seq/N, inputs) is this rank's part of the sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gather_linear, _ = sequence_operators(self.group)
        return gather_linear(x, self.weight, self.bias)


class SequenceRowLinear(RowParallelLinear):
    """As its ancestor; returns this rank's part of the sequence, (batch, seq/N, outputs)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, scatter = sequence_operators(self.group)
        y = scatter(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class SequenceParallelGPT(nn.Module):
    """`model`, which it takes apart, on the ranks of `group`: `self(tokens)` is (batch, seq, V/N).

    Between the products each rank has its part of the sequence. `finish()` follows each backward pass.
    """

    def __init__(self, model: models.GPT, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        # BEGIN SOLUTION
        _, scatter = sequence_operators(group)
        for block in model.blocks:
            parallel_block(block, group, SequenceColumnLinear, SequenceRowLinear)
        self.tokens = VocabularyEmbedding(model.tokens, group, scatter)
        self.positions, self.blocks, self.norm = model.positions, model.blocks, model.norm
        self.unembed = SequenceColumnLinear(model.unembed, group)
        self.unembed.weight = self.tokens.weight
        # END SOLUTION

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        # BEGIN SOLUTION
        sequence, ranks = tokens_BS.shape[1], self.group.size()
        x_BSH = self.tokens(tokens_BS)
        x_BSH = x_BSH + self.positions.weight[:sequence].chunk(ranks)[self.group.rank()]
        for block in self.blocks:
            x_BSH = block(x_BSH)
        return self.unembed(self.norm(x_BSH))
        # END SOLUTION

    def finish(self) -> None:
        """Sum the gradients of which each rank has a part, over the ranks."""
        # BEGIN SOLUTION
        whole = [self.positions.weight]
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                whole += module.parameters()
            elif isinstance(module, SequenceRowLinear) and module.bias is not None:
                whole.append(module.bias)
        for parameter in whole:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.group)
        # END SOLUTION


# %% tags=["check"] exercise="sequence_parallel_gpt" points=4
# %%px --timeout 90
check.sequence_parallel_gpt(SequenceParallelGPT)

# %% tags=["hidden-check"] exercise="sequence_parallel_gpt" points=2
# %%px --timeout 30
values, ledger = gpt_values(SequenceParallelGPT)
check.show_values(values=values, large=ledger.count("reduce_scatter") <= 4 * 2 + 2)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Norms, biases and positions: each rank's steps go along its own tokens. The ranks' copies differ
# more and more, and the loss falls all the same, a little less well.
# </details>

# %%
# %%px --timeout 100
for name, make_optimizer in gpt_optimizers.items():
    model = SequenceParallelGPT(fresh_gpt(), group)
    curves[name]["sequence parallel"] = losses_of(model, shared_loss, make_optimizer, batches)
    same = gap(curves[name]["one rank"], curves[name]["sequence parallel"]) < 1e-3
    if rank == 0:
        print(f"GPT, {name}, sequence parallel: the losses of one rank, step by step: {same}")
worst = comm.allreduce(largest_gap(SequenceParallelGPT, shared_loss), op=max)
if rank == 0:
    print(f"every gradient is this rank's share of the serial model's: {worst < 1e-3}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves(
    "One curve: the GPT on one rank, and shared out", curves, "loss (nats a byte)"
)

# %% [markdown]
# What does a rank keep of a block, and what does it send? Measured, over what you predicted:

# %%
# %%px
sequence_block = parallel_block(
    copy.deepcopy(fresh_gpt().blocks[0]), group, SequenceColumnLinear, SequenceRowLinear
)
part = config.sequence_length // world_size
blocks = {
    "serial": (fresh_gpt().blocks[0], config.sequence_length),
    "tensor_parallel": (block, config.sequence_length),
    "sequence_parallel": (sequence_block, part),
}
predicted = predict_activations(8, config.sequence_length, config.hidden_size, world_size)
kept = {}
for name, (one, tokens) in blocks.items():
    x = torch.randn(8, tokens, config.hidden_size, device=device, requires_grad=True)
    with Ledger() as sent:
        with memory.Saved(one) as saved:
            y = one(x)
        y.sum().backward()
    kept[name] = saved.bytes
    if rank == 0:
        print(
            f"{name}: {saved.bytes:,} bytes kept, {saved.bytes / predicted[name]:.2f} of the "
            f"prediction; {sent.ring_bytes():,.0f} bytes sent"
        )

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Sequence parallelism shards what tensor parallelism leaves whole")
axes.bar(
    [name.replace("_", " ") for name in kept],
    [size / 1e6 for size in kept.values()],
    **plots.hatched("activations"),
)
label = axes.set_ylabel("MB kept, rank 0")

# %% [markdown]
# # Against the library
#
# PyTorch has all of it: `parallelize_module` with a plan that names a style for each layer.
# `ColwiseParallel` cuts a layer by columns, `RowwiseParallel` by rows. The same plan for the blocks of
# the GPT, the rest whole on every rank; on the default group (Gloo on CPUs, NCCL on GPUs).
#
# A trap of exercise 2 is here too: `ColwiseParallel` cuts a fused QKV as one. So the rows of the library's
# QKV are put in the order of the ranks first.


# %%
# %%px --timeout 100
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

PLAN = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(),
}


def by_rank(tensor, sections):
    """Rows of a fused layer, all of rank 0's first."""
    parts = [section.chunk(world_size) for section in tensor.split(sections)]
    return torch.cat([part[r] for r in range(world_size) for part in parts])


def library_gpt():
    model, mesh = fresh_gpt(), init_device_mesh(device.type, (world_size,))
    for one in model.blocks:
        for parameter in one.attention.qkv.parameters():
            parameter.data = by_rank(parameter.data, one.attention.sections)
        parallelize_module(one, mesh, PLAN)
        one.attention.heads //= world_size
        one.attention.key_value_heads //= world_size
    return model


def our_gpt(on):
    model = fresh_gpt()
    for one in model.blocks:
        parallel_block(one, on)
    return model


ways = {"ours": our_gpt(dist.group.WORLD), "parallelize_module": library_gpt()}
if device.type == "cpu":
    ways["ours on group"] = our_gpt(group)
steps = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in ways.items()}


def library_step(name, tokens, targets):
    steps[name].zero_grad()
    loss = serial_loss(ways[name], tokens, targets)
    loss.backward()
    steps[name].step()
    return loss.item()


learned = {name: [library_step(name, *batch) for batch in batches[:6]] for name in ways}
for name, losses in learned.items():
    with Ledger() as sent:
        library_step(name, *batches[0])
    if rank == 0:
        print(
            f"{name}: same losses {gap(losses, learned['ours']) < 1e-3}; "
            f"{sent.ring_bytes():,.0f} bytes sent"
        )

# %% [markdown]
# **Predict**: which is faster here, and by how much?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
spent = {name: [] for name in ways}
for i in range(12):
    for name in ways:
        comm.Barrier()
        start = time.perf_counter()
        library_step(name, *batches[i % len(batches)])
        spent[name].append(max(comm.allgather(time.perf_counter() - start)))
milliseconds = {name: 1e3 * statistics.median(times[2:]) for name, times in spent.items()}

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A training step, over that of the library")
rows = [
    (name, milliseconds[name] / milliseconds["parallelize_module"])
    for name in ways
    if name != "parallelize_module"
]
for row, (_, ratio) in enumerate(rows[::-1]):
    axes.barh(row, ratio, height=0.6, **plots.hatched("reference"))
axes.axvline(1, color=plots.NEUTRAL, linewidth=1)
ticks = axes.set_yticks(range(len(rows)), [name for name, _ in rows[::-1]])
axes.set_xlabel("time over that of parallelize_module on the default group")
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in rows))

# %% [markdown]
# What to look for:
#
# - **The same bytes.** Both make four all-reduces a layer. `DTensor` finds out by itself where, from how
#   each tensor is laid out, and does so in each step: that is most of its time at this size.
# - **Nothing overlaps.** Each all-reduce stands between two products. On `group`, over memory, it costs
#   little; on Gloo it is most of the step.
# - **A model this small should not be cut.** Tensor parallelism pays where products are large: the
#   chapter computes from which size.
#
# # Going further
#
# - Start the all-reduce of f's backward pass with `async_op=True`, and compute the weight's gradient
#   meanwhile. Where do you have to wait?
# - `SequenceParallel` and `PrepareModuleInput` in the library's plan are part C. Which layouts do they need?
# - Keys and values for fewer heads than ranks: give each to several ranks. Whose gradient is it then?
# - Two groups: tensor parallelism inside a node, data parallelism between nodes. Over which ranks is
#   which gradient averaged?
# - Send in bfloat16 and keep the weights in float32. Where does the sum of N ranks lose digits?
