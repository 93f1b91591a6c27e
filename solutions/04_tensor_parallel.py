# %% [markdown]
# # Lab 04: Tensor parallelism
#
# Data parallelism and ZeRO split the samples, and every rank computes whole layers. In tensor parallelism, the
# ranks split a *layer*: each rank holds some columns or rows of its weights, and all ranks compute on the same
# samples. In this lab, you cut a transformer so that a layer needs only four all-reduces. You train the small
# GPT and get the same learning curve as on one rank. Then you also split the sequence, and **compare what each rank
# sends and keeps with the formulas**.
#
# | | |
# |---|---|
# | **You will be able to** | write f and g; cut a matrix product by columns and by rows; cut an MLP, attention by heads, and embedding and cross-entropy by vocabulary; decide where ranks must draw the same random numbers; split the sequence; predict the bytes that a rank sends and keeps |
# | **Time** | 150 minutes: 135 for exercises, 10 for reading, 5 for the library |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or basic knowledge of all-reduces and of a transformer's layer. No GPU |
# | **Background** | [chapter 04](../book/04_tensor_parallel.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px`
# run on all ranks. Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import copy
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models, timing, training
from parlab.checks import tensor_parallel as check
from parlab.costs import tensor_parallel as costs
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# All functions communicate through `torch.distributed`, on the `group` that they get as an argument:
# `group.rank()` is this rank's number, and `group.size()` is the number of ranks. All ranks have the same
# samples and start from the same model. If you are stuck on an exercise, run `use_reference("its_name")` in a
# `%%px` cell. It puts a solution in place, and you can continue.
#
# In this lab, N is the number of ranks in `group`, which the chapter calls $t$. If N does not divide a size, your
# functions raise a `ValueError` that names the size. Every rank raises it before anything is sent.
#
# # Part A: a layer on several ranks
#
# ## 1. f and g
#
# *Difficulty 2/5, 10 minutes.*
#
# Autograd does not know about other ranks. Two functions connect it with them. Each is the mirror image of the
# other:
#
# | | forward | backward |
# |---|---|---|
# | **f**, where a parallel part begins | nothing: all ranks have the same input | all-reduce: the input's gradient is a sum, and each rank has computed one term |
# | **g**, where a parallel part ends | all-reduce: the output is a sum, and each rank has computed one term | nothing: all ranks have the same gradient |
#
# - The sum is over all ranks of `group`. Any shape and any float dtype is possible.
# - The tensor that f or g gets, and the gradient that comes back, do not change.
# - A direction that needs no communication sends nothing.
# - The memory of a tensor need not be in the order of its indices (`x.transpose(1, 2)`), and its order may differ
#   between ranks. Gloo adds numbers in the order of the memory, without an error, and PyTorch's NCCL backend refuses
#   such a tensor. So pass a contiguous copy to the all-reduce.
#
# **Predict**: the loss is the sum of `g(f(x) * w)`, with a different `w` on each rank. What is the gradient of
# `x`? What would it be without f?
#
# <details><summary>Hint 1</summary>
#
# `total = x.clone(memory_format=torch.contiguous_format)`, and then an all-reduce of `total`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `backward` finds what `forward` stores in `ctx` (such as `ctx.group = group`). It returns one value for each
# argument of `forward` after `ctx`: the gradient, and None for the group.
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
# It is the sum of all ranks' `w`. Without f, it is this rank's own `w`. That is only a part of the gradient, and a
# different part on each rank, but there is no error.
# </details>
#
# ## 2. A product cut by columns
#
# *Difficulty 2/5, 10 minutes.*
#
# A linear layer computes $XA + b$. If each rank has some columns of $A$, it gets the same columns of the result, and
# nothing needs to be sent in the forward pass. PyTorch stores $A$ transposed, so columns of $A$ are *rows* of
# `linear.weight` (outputs, inputs).
#
# - In `__init__`, `self.weight` is a parameter with this rank's outputs. `self.bias` is its part of the bias, or
#   None if the layer has no bias.
# - Rank $r$ has the $r$-th of N equal parts. But a layer may compute several results in one product: Q, K, and V
#   are often one layer. Then `sections` lists how many outputs belong to each of them, in order, and each section
#   is cut into N parts separately.
# - `forward(x)` gets the same x (…, inputs) on all ranks. It returns this rank's outputs (…, outputs/N), in the order of
#   the sections. In the backward pass, x must get its whole gradient.
#
# Edge cases: the parameters have their **own memory**, because a view would keep the whole layer alive. `linear`
# does not change. If N does not divide a section, raise a `ValueError`.
#
# **Predict**: 12 outputs are Q, K, and V, with four each, on 2 ranks. Which outputs does rank 0 have? Which would it
# have without `sections`?
#
# <details><summary>Hint 1</summary>
#
# `tensor.split(sections)` returns the sections, `section.chunk(n)[r]` is a rank's part of one, and `torch.cat`
# concatenates parts in new memory.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `f, _ = f_and_g(self.group)` and `F.linear(f(x), self.weight, self.bias)`.
# </details>


# %% tags=["exercise"] exercise="column_parallel_linear"
# %%px
class ColumnParallelLinear(nn.Module):
    """This rank's outputs of `linear`; each of the `sections` (default: one) is cut separately."""

    def __init__(
        self, linear: nn.Linear, group: dist.ProcessGroup, sections: list[int] | None = None
    ) -> None:
        super().__init__()
        self.group = group
        # BEGIN SOLUTION
        sections = sections or [linear.out_features]
        if any(outputs % group.size() for outputs in sections):
            raise ValueError(f"{group.size()} ranks do not divide {sections} outputs")

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
    """Return whether it is refused as the lab asks for."""
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
# It has 0 and 1 (Q), 4 and 5 (K), and 8 and 9 (V). Without `sections`, it would have 0 to 5, which is all of Q and half
# of K. The shapes are the same, so there is no error.
# </details>
#
# ## 3. A product cut by rows
#
# *Difficulty 2/5, 10 minutes.*
#
# You can also cut in the other direction: each rank has some of the *inputs* and the rows of $A$ that multiply them
# (columns of `linear.weight`). Each rank then has a product of the full shape, which is a part of the sum.
#
# - In `__init__`, `self.weight` (outputs, inputs/N) has its own memory. `self.bias` is a copy of the whole bias, or
#   None. If N does not divide the inputs, raise a `ValueError`.
# - `forward(x)` gets this rank's part of the input, x (…, inputs/N). It returns the layer's whole output, the same
#   on all ranks.
#
# **Predict**: somebody passes the bias to `F.linear` on each rank. What is the result?
#
# <details><summary>Hint 1</summary>
#
# `linear.weight.detach().chunk(n, dim=1)[r].clone()`: a chunk along dimension 1 is a view.
# </details>
#
# <details><summary>Hint 2</summary>
#
# First compute the product without the bias, then apply g, and then add the bias once.
# </details>


# %% tags=["exercise"] exercise="row_parallel_linear"
# %%px
class RowParallelLinear(nn.Module):
    """This rank's part of `linear`, cut by inputs; every rank gets the whole output."""

    def __init__(self, linear: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        # BEGIN SOLUTION
        if linear.in_features % group.size():
            raise ValueError(f"{group.size()} ranks do not divide {linear.in_features} inputs")
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
    """Return a parallel layer. Set the serial layer to zero, to detect memory that both share."""
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
# It is the sum of all ranks' outputs, which contains the bias N times.
# </details>
#
# ## 4. An MLP with one all-reduce each way
#
# *Difficulty 2/5, 5 minutes.*
#
# Cut the first layer by columns and the second by rows. Then each rank already has the hidden numbers that its part
# of the second layer needs. The activation function between them works on single numbers, so each rank applies it
# to its own. Nothing is sent between the two layers.
#
# `mlp` is `nn.Sequential(first, activation, second)`, and it is not used afterwards. Return this rank's part of
# it, which is also an `nn.Sequential` of three modules, so that the parameters keep their names (`"0.weight"`, …).
# The two classes are arguments, because part C uses other ones.
#
# **Predict**: cut the first layer by rows and the second by columns instead. How many all-reduces (or gathers) would the
# forward pass need, and what would the activation get?
#
# <details><summary>Hint 1</summary>
#
# `first, activation, second = mlp` unpacks the three modules.
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
    """Return this rank's share of `mlp`, which splits the hidden numbers, not input and output."""
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
# The activation function needs complete sums, but a rank has only one term of each sum: gelu(a + b) is not
# gelu(a) + gelu(b). So there must be an all-reduce before the activation function and a gather at the end. These are two
# collectives instead of one, and the all-reduce has the size of the hidden numbers, which is 4h instead of h in a
# transformer.
# </details>
#
# Now train on MNIST. The first two layers of the MLP are cut. The last one, with ten outputs, is whole on every
# rank. The reference is a plain loop on one rank, with SGD and Adam.

# %%
# %%px --timeout 100
batches = training.mnist_batches(2560, 256, device)
image_curves = {}
for name, make_optimizer in training.OPTIMIZERS.items():
    torch.manual_seed(0)
    serial = models.mlp(64 * world_size).to(device)
    pair = parallel_mlp(copy.deepcopy(serial[1:4]), group)
    shared = nn.Sequential(serial[0], *pair, serial[4], copy.deepcopy(serial[5]))
    image_curves[name] = {
        "one rank": training.plain_losses(serial, make_optimizer, batches),
        "tensor parallel": training.plain_losses(shared, make_optimizer, batches),
    }
if rank == 0:
    training.print_same(image_curves, 1e-4)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.same_curves(
    "One curve: the MLP on one rank, and split over the ranks", image_curves, "loss over the batch"
)

# %% [markdown]
# ## 5. What does a layer send?
#
# *Difficulty 2/5, 5 minutes.*
#
# A transformer layer consists of attention and an MLP. Attention is cut like the MLP: by columns at its beginning and
# by rows at its end.
#
# **Predict in numbers**, in float32, for a batch of `batch` samples with `sequence` tokens and a layer of size
# `hidden`, forward and backward together:
#
# - `all_reduces`: the number of all-reduces of a layer (for one rank, this number and 0 are both accepted)
# - `bytes`: the size in bytes of the tensor that each rank passes to one all-reduce
# - `sent`: the number of bytes that a rank sends for the whole layer, if each all-reduce uses a ring
# - `weights`: the number of bytes that a rank would send if it gathered the layer's 12h² weights once instead
#   (without biases and norms), on a ring: (N−1)/N of them
#
# The check compares your numbers with formulas. Later, in part B, you measure your own layer.


# %% tags=["exercise"] exercise="predict_layer"
# %%px
def predict_layer(batch: int, sequence: int, hidden: int, world_size: int) -> dict[str, float]:
    """Return `all_reduces`, `bytes`, `sent` and `weights` of a transformer layer in float32."""
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
# Heads are independent until the output projection combines them. So each rank takes some heads: their columns of Q, K,
# and V, and the rows of the output projection that use them.
#
# `models.Attention` is the attention of the small GPT. Its `qkv` is one layer. Its outputs are the queries of all
# heads, then the keys, and then the values. `attention.sections` lists how many of each there are. With *grouped*
# queries, there are fewer keys and values: `attention.key_value_heads`. The forward pass uses only `self.qkv`,
# `self.heads`, `self.key_value_heads`, `self.head_size`, and `self.out`. If these have the values for this rank's part,
# the forward pass works without a change.
#
# - Change `attention` in place, and return it.
# - If N does not divide the heads or the key-value heads, raise a `ValueError` that says so, and leave `attention` as it
#   is. (A rank with half a head computes wrong results, and if its `head_size` is halved, too,
#   there is no error.)
#
# **Predict**: there are 16 heads and 4 key-value heads on 4 ranks. On rank 1, which heads use which keys? What about 8
# ranks?
#
# <details><summary>Hint 1</summary>
#
# Use `column(attention.qkv, group, attention.sections)` before you change the number of heads, because `sections` is
# computed from it.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Then cut `attention.out` by rows, and set `attention.heads //= n` and `attention.key_value_heads //= n`. `head_size`
# stays the same.
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
            f"{group.size()} ranks do not divide {attention.heads} heads with "
            f"{attention.key_value_heads} heads of keys and values"
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
# Rank 1 has heads 4 to 7, which all use key-value head 1, and it has this one as well. On 8 ranks, each key-value head
# would have to be on two ranks. Here, this raises an error.
# </details>
#
# ## 7. Embedding by vocabulary
#
# *Difficulty 3/5, 10 minutes.*
#
# In small models, the embedding is often the largest matrix. Rank $r$ has the $r$-th part of its rows: tokens $rV/N$ to
# $(r+1)V/N - 1$. Each token belongs to one rank. That rank looks up its row, all others contribute zeros, and g adds
# them.
#
# - `self.weight` (V/N, h) is a parameter with its own memory.
# - `forward(tokens)` gets tokens (batch, seq) int64, the same on all ranks. It returns (batch, seq, h), the same on
#   all ranks.
# - A rank's weight gets gradients only from its own tokens. Tokens of other ranks add nothing to the gradient of any row.
# - `reduce` is the function that adds the ranks' parts. It is g if the argument is None.
#
# Edge cases: `tokens` does not change. If N does not divide the vocabulary, raise a `ValueError`. (Real vocabularies
# are padded until it does.)
#
# **Predict**: somebody forgets the mask, and clamps tokens of other ranks to this rank's range. What is the result?
#
# <details><summary>Hint 1</summary>
#
# `local = tokens - first`, and `inside = (local >= 0) & (local < V // N)`. Look up `local` if it is inside and 0
# otherwise. Then set the rows of the other tokens to zero.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `rows = F.embedding(local * inside, self.weight) * inside.unsqueeze(-1)`, and then `reduce(rows)`.
# </details>


# %% tags=["exercise"] exercise="vocabulary_embedding"
# %%px
class VocabularyEmbedding(nn.Module):
    """This rank's part of `embedding`, cut by vocabulary; every rank gets the same whole rows."""

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup, reduce=None) -> None:
        super().__init__()
        self.group = group
        self.reduce = reduce or f_and_g(group)[1]
        # BEGIN SOLUTION
        if embedding.num_embeddings % group.size():
            raise ValueError(
                f"{group.size()} ranks do not divide {embedding.num_embeddings} tokens: pad the "
                "vocabulary"
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
# It is the sum of N rows. One of them is right, and each of the other N − 1 is the first or the last row of a part. There
# is no error, and the loss falls about as fast as with the mask.
# </details>
#
# ## 8. Cross-entropy without the logits
#
# *Difficulty 4/5, 15 minutes.*
#
# The output layer is cut by columns, so each rank has the scores of its own part of the vocabulary. Gathering them
# would send $V$ numbers for each token. The loss of a token needs only three numbers:
#
# $$ \ell = \log \sum_v e^{x_v - \hat x} + \hat x - x_\text{target}, \qquad \hat x = \max_v x_v $$
#
# These are the maximum, the sum, and the target's score. Each rank computes its part, and the ranks combine the parts
# in three all-reduces, with one number for each token.
#
# - `scores` (…, V/N) are this rank's scores. `targets` (…) int64 are the same on all ranks.
# - Return the mean loss over all tokens, of shape (), the same on all ranks.
# - The gradient of `scores` is this rank's part of the gradient of the whole softmax.
# - Scores may be as large as ±1000, so subtract the maximum. It must be the maximum over the *whole* vocabulary,
#   because the sums of the ranks only fit together if all ranks subtract the same number. (One rank's scores may all
#   be far below those of another rank.)
# - The forward pass uses at most three collectives, and none of them has the size of the vocabulary. The backward pass
#   sends nothing.
#
# Edge case: neither `scores` nor `targets` changes.
#
# **Predict**: there are 8,192 tokens and a vocabulary of 51,200, in float32. How many bytes does each rank receive in an
# all-gather of the logits? How many does it receive in three all-reduces?
#
# <details><summary>Hint 1</summary>
#
# The maximum needs no gradient (`scores.detach()`, and `dist.all_reduce(highest, dist.ReduceOp.MAX, group)`), because
# any number in its place gives the same loss. The two sums need a gradient: g adds them and has the right backward
# pass.
# </details>
#
# <details><summary>Hint 2</summary>
#
# As in the embedding, `local` and `inside` show whether a token's target belongs to this rank. Then
# `scores.gather(-1, index)` selects its score. Use zero for the other tokens.
# </details>


# %% tags=["exercise"] exercise="vocabulary_cross_entropy"
# %%px
def vocabulary_cross_entropy(
    scores: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the mean cross-entropy. Each rank has the scores of its part of the vocabulary."""
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
# The whole logits have 8,192 × 51,200 × 4 bytes = 1.7 GB, and a rank receives (N−1)/N of them, all except its own part.
# An all-reduce has 8,192 × 4 bytes = 33 kB. On a ring, a rank receives 2 (N−1)/N times as much in each of the three, less
# than 197 kB in total. That is about 8,500 times less than the logits.
# </details>
#
# ## 9. Draw the same, draw different
#
# *Difficulty 2/5, 5 minutes.*
#
# Dropout draws a random mask. Where all ranks hold the same tensor (after g), they must draw the same mask, because
# their copies would differ otherwise. Where each rank holds its own part (between columns and rows, and when it draws
# the initial weights of its part), the ranks must draw different numbers, because the parts would be correlated
# otherwise. So each rank needs two generators.
#
# - `together` draws the same numbers on all ranks. `apart` draws different numbers on each rank, and not those of
#   `together`.
# - Both depend only on `seed`, on the rank's number in `group`, and on the size of `group`, so that a run can be
#   repeated. Another seed gives other numbers on all ranks.
# - `apart` on one rank does not draw the numbers that `apart` on another rank draws with another seed.
# - `apart` does not draw the numbers that `together` draws with another seed.
#
# Edge cases: seeds are whole numbers from 0 to one million. Give each generator its own seed: a stream must not be a later part
# of another one. On a CPU, torch uses only the lowest 32 bits of a seed. Use `torch.Generator(device)`, and leave
# torch's global generator alone.
#
# **Predict**: the same mask is drawn on all four shards of the hidden numbers, with p = 0.5. How large is the variance of
# the number of hidden units that are kept, compared with independent masks?
#
# <details><summary>Hint 1</summary>
#
# `torch.Generator(device).manual_seed(number)` returns the generator.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which numbers should you use? `together` can use the seed itself. `apart` needs a 32-bit number
# for each pair of seed and rank, different from those of all other pairs and of `together`. Count
# the pairs, and start at a large number.
# </details>


# %% tags=["exercise"] exercise="dropout_generators"
# %%px
def dropout_generators(
    seed: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[torch.Generator, torch.Generator]:
    """Return `together`, the same on all ranks, and `apart`, different on each, both on `device`."""
    # BEGIN SOLUTION
    together = torch.Generator(device).manual_seed(seed)
    # In the upper half of 32 bits, each pair of seed and rank has its own number.
    apart = torch.Generator(device).manual_seed(2**31 + seed * group.size() + group.rank())
    return together, apart
    # END SOLUTION


# %% tags=["check"] exercise="dropout_generators" points=2
# %%px
check.dropout_generators(dropout_generators)


# %% tags=["hidden-check"] exercise="dropout_generators" points=1
# %%px --timeout 20
def streams(seed):
    """Compare the first numbers of all ranks' generators, for this seed and the next one."""
    made = [g for s in (seed, seed + 1) for g in dropout_generators(s, group, device)]
    begin = [torch.rand(4, generator=g, device=device).tolist() for g in made]
    every = [one for begins in comm.allgather(begin) for one in begins]
    return [[a == b for b in every] for a in every]


def distinct():
    """Return how many streams the runs of a hundred seeds have."""
    made = [g for seed in range(100) for g in dropout_generators(seed, group, device)]
    begin = [torch.rand(2, generator=g, device=device).tolist() for g in made]
    return len({tuple(one) for begins in comm.allgather(begin) for one in begins})


def moved():
    """Return whether `dropout_generators` changes the state of torch's global generator."""
    before = torch.get_rng_state()
    dropout_generators(7, group, device)
    return not torch.equal(before, torch.get_rng_state())


check.show_values(moved=moved(), distinct=distinct(), alike=streams(40), zero=streams(0))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It is four times as large. With equal masks, the number of kept units is four times that of one mask, so its variance
# is 4² times as large. With four independent masks, it is 4 times as large. Equal masks therefore add more noise, with
# fewer degrees of freedom, and there is no error.
# </details>
#
# ## 10. The whole GPT
#
# *Difficulty 3/5, 15 minutes.*
#
# Now you have all parts. A block keeps its two norms and its forward pass, and you replace attention and the MLP. The
# model's token embedding and its output layer are cut by the vocabulary.
#
# - `parallel_block(block, …)` and `parallel_gpt(model, group)` change their argument in place, and return it.
#   Blocks, norms, and the position embedding stay the same objects, with the same parameters.
# - `model(tokens)` returns the scores of this rank's part of the vocabulary, (batch, seq, V/N), as exercise 8 needs
#   them.
# - The output layer *is* the embedding: `model.unembed.weight is model.tokens.weight` is still true. It is this rank's
#   part of both.
# - Norms and the position embedding stay whole on every rank. Their gradients must be whole and the same on all ranks,
#   although no function sums them. Why is this the case?
# - Parameters keep their names.
#
# <details><summary>Hint 1</summary>
#
# In a block: `block.attention = parallel_attention(block.attention, …)`, and the same for the MLP. `model.blocks` is a
# list, and each block is changed in place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `model.unembed` is a linear layer without a bias, cut by columns. The column-parallel layer contains the f that its
# input's gradient needs. Then `model.unembed.weight = model.tokens.weight` ties the weights again.
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
    """Return a float64 GPT whose sizes N divides, and inputs shorter than its maximum length."""
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
    """Return whether `parallel_block` returns its argument, and the classes of its layers."""
    column, row = (type(name, (nn.Identity,), {}) for name in ("Column", "Row"))
    block = small_gpt()[0].blocks[0]
    same = parallel_block(block, group, column, row) is block
    layers = [block.attention.qkv, block.attention.out, block.mlp[0], block.mlp[2]]
    return [same, [type(layer).__name__ for layer in layers]]


values, ledger = gpt_values(parallel_gpt)
check.show_values(values=values, block=block_layers(), calls=ledger.count() <= 4 * 2 + 1 + 1 + 3)

# %% [markdown]
# <details><summary>Why the gradients of norms and positions are whole</summary>
#
# A parallel part begins with f, which sums the gradient of its input over the ranks in the backward pass. So all ranks
# pass the same whole gradient on to the norms and positions before it.
# </details>
#
# Now train it, on one rank and on all ranks. The configuration grows with the number of ranks, so that this number
# divides all sizes.

# %%
# %%px --timeout 100
heads = world_size * -(-4 // world_size)
config = models.GPTConfig(
    vocab_size=world_size * -(-256 // world_size),
    sequence_length=world_size * -(-64 // world_size),
    hidden_size=16 * heads,
    heads=heads,
)
batches = training.text_batches(20, 8, config.sequence_length, device)


def fresh_gpt():
    torch.manual_seed(0)  # every rank draws the whole model, and keeps its share
    return models.GPT(config).to(device)


def shared_loss(scores, targets):
    return vocabulary_cross_entropy(scores, targets, group)


# %%
# %%px --timeout 100
curves = {}
for name, make_optimizer in training.GPT_OPTIMIZERS.items():
    serial, shared = fresh_gpt(), parallel_gpt(fresh_gpt(), group)
    curves[name] = {
        "one rank": training.plain_losses(serial, make_optimizer, batches, training.token_loss),
        "tensor parallel": training.plain_losses(shared, make_optimizer, batches, shared_loss),
    }
if rank == 0:
    training.print_same(curves, 1e-3)

# %% [markdown]
# Are all gradients right, too? To compare them, cut the serial model's gradients in the same way as its weights. The
# same function does this, on a model whose weights *are* the gradients.


# %%
# %%px
def largest_gap(parallel):
    """Return the largest error of this rank's gradients, relative to the largest right one."""
    serial, shared = fresh_gpt(), parallel(fresh_gpt(), group)
    tokens, targets = batches[0]
    training.token_loss(serial(tokens), targets).backward()
    shared_loss(shared(tokens), targets).backward()
    if hasattr(shared, "finish"):  # part C
        shared.finish()
    for parameter in serial.parameters():
        parameter.data = parameter.grad
    right = dict(parallel(serial, group).named_parameters())
    return max(
        ((p.grad - right[name]).abs().max() / right[name].abs().max()).item()
        for name, p in shared.named_parameters()
    )


worst = comm.allreduce(largest_gap(parallel_gpt), op=max)
if rank == 0:
    print(f"every gradient is this rank's share of the serial model's: {worst < 1e-3}")

# %% [markdown]
# What does a layer send? Compare the measured values with your predictions:

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
# The next product needs the result of an all-reduce, so your ranks wait for it. (The chapter shows how libraries hide
# some of this time.) So the speed of the link is decisive. The next cells run the two halves of a layer on an emulated
# cluster. Each half consists of f, a computation that takes a set time divided by the number of ranks, and g. First, all
# ranks are on one node. Then, each rank is on its own node.
#
# **Predict**: on one rank, the whole layer computes for 40 ms forward and 80 ms backward. An all-reduce takes less than
# 1 ms inside the node and about 35 ms between nodes. How long do the forward and backward passes of a layer take on four
# ranks, in both cases?

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


# %%
# %%px --timeout 60
def whole_layer(network):
    """Return a function that runs the forward and the backward pass of a layer."""
    halves = [half_layer(emulated_group(network)) for _ in range(2)]
    x = torch.ones(NUMBERS, requires_grad=True)
    return lambda: halves[1](halves[0](x)).sum().backward()


layers = {name: whole_layer(network) for name, network in networks.items()}
times = timing.fastest_seconds(layers, comm, rounds=5)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
alone = 3 * FORWARD
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
# Between g and the next f, all ranks hold the same tensor and do the same work on it: norms, dropout, and residual
# additions. With *sequence parallelism*, each rank does this only for its own part of the sequence. An all-reduce is a
# reduce-scatter followed by an all-gather: g becomes the reduce-scatter, f becomes the all-gather, and everything
# between them is split. This sends as many bytes as before (a quarter more if inputs are gathered again), and each rank
# keeps an N-th of what lies between g and f.
#
# ## 11. Gather into a product, scatter out of one
#
# *Difficulty 4/5, 15 minutes.*
#
# Activations are (batch, seq/N, h) on each rank, and rank $r$ has the $r$-th part of the sequence. There are two
# functions, which are mirror images of each other:
#
# - `scatter(x)`: x (batch, seq, h) is one term of a sum on each rank. It returns the sum for this rank's part of the
#   sequence, (batch, seq/N, h). In the backward pass, the gradient is gathered from all ranks.
# - `gather_linear(x, weight, bias)`: x (batch, seq/N, h) is this rank's part of the sequence. It returns the product for
#   the *whole* sequence, (batch, seq, outputs/N). The gradient of x is the sum over the ranks, for this rank's part of
#   the sequence. `weight` and `bias` (or None) get the gradients of the whole sequence.
# - `gather_linear` **keeps only this rank's part** for the backward pass (`ctx.save_for_backward(x, weight)`), and gathers
#   again there. This adds a third collective, but the stored input is N times smaller. A separate
#   product would store its whole input, so the gather and the product must be one function.
#
# Edge cases: if N does not divide the sequence, `scatter` raises a `ValueError`. Any float dtype is possible. Do not change
# the arguments or the incoming gradients. Their memory may be in any order. Use `flatten` or `reshape`, because `view`
# raises an error for some of them.
#
# The cell provides `gathered` and `scattered`, which do the two collectives along dimension 1. Those of torch work along
# dimension 0.
#
# **Predict**: how many bytes does a rank send for a `gather_linear` and a `scatter`, forward and backward, compared with
# an f and a g?
#
# <details><summary>Hint 1</summary>
#
# In `GatherLinear.backward`, the gradient of the whole input is `gradient @ weight`, and this must be scattered. The
# gradient of the weight is `gradient.flatten(0, 1).T @ whole.flatten(0, 1)`. The gradient of the bias is the sum over all
# dimensions except the last.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `backward` returns one value for each argument of `forward` after `ctx`. This is None for the group, and for a bias that
# is None. `Scatter.backward` returns `gathered(gradient, ctx.group), None`.
# </details>


# %% tags=["exercise"] exercise="sequence_operators"
# %%px
def gathered(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All ranks' (batch, part, …) one after the other along the sequence; no gradient."""
    parts = x.new_empty(group.size(), *x.shape)
    dist.all_gather_single(parts.flatten(0, 1), x.contiguous(), group=group)
    return parts.movedim(0, 1).flatten(1, 2)


def scattered(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return this rank's part of the sequence of the ranks' summed (batch, seq, …); no gradient."""
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
            raise ValueError(f"{group.size()} ranks do not divide {x.shape[1]} tokens")
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
    """Return `gather_linear(x, weight, bias)` and `scatter(x)` over the ranks of `group`."""
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
# Let all tensors have the same size. An f and a g are two all-reduces, which send 4 (N−1)/N times this size. A gather
# and a scatter in each direction are four collectives with (N−1)/N each, which is the same. Gathering again in the
# backward pass is a fifth one, so the ratio is 5/4. A library can hide this fifth one behind the product that computes
# the gradient of the input, which does not need it.
# </details>
#
# ## 12. What does a layer keep?
#
# *Difficulty 2/5, 5 minutes.*
#
# For its backward pass, a block of the small GPT keeps the inputs of both norms, the inputs of the four linear layers
# (that of the second one in the MLP is 4h wide), Q, K, and V, and the input of the GELU (4h). Attention is *fused*: it
# computes its scores again in the backward pass. It keeps its output, which is also the input of a linear layer. There
# is no dropout.
#
# **Predict in numbers**: how many bytes does a rank keep of one block, in float32? Leave out small things, such as the
# norms' means.
#
# - `serial`: on one rank
# - `tensor_parallel`: with f and g. From the output of a layer that is cut by columns to the input
#   of the next layer that is cut by rows, tensors are split. All other tensors are whole on every
#   rank
# - `sequence_parallel`: with `gather_linear` and `scatter`


# %% tags=["exercise"] exercise="predict_activations"
# %%px
def predict_activations(
    batch: int, sequence: int, hidden: int, world_size: int
) -> dict[str, float]:
    """Return a rank's bytes of a block: `serial`, `tensor_parallel`, `sequence_parallel`."""
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
# ## 13. The GPT with a split sequence
#
# *Difficulty 4/5, 15 minutes.*
#
# Two new layers replace the ones from part A, and the blocks are cut as before. The new parts are:
#
# - The parts of the embedding are summed *and* scattered: pass `scatter` as `reduce`. Add the position embedding of
#   each token only once, not on every rank before the sum. The simplest way: after `scatter`, a rank adds the positions
#   of its own part of the sequence.
# - All blocks and the last norm work on (batch, seq/N, h). The output layer gathers, so a rank's scores are (batch, seq,
#   V/N), as before.
# - A parameter that is **whole on every rank** but saw only a part of the sequence has only a part of its gradient. These
#   are the norms, the biases after `scatter`, and the positions. `finish()` is called after each backward pass. It sums
#   these gradients over the ranks, and no others.
#
# Edge cases: if N does not divide the sequence, raise a `ValueError`. Parameters have the names that they have in
# `models.GPT`, and the output layer is still the embedding. `finish()` leaves out a parameter whose `.grad` is None. (If
# it is frozen, its `.grad` is None on all ranks.) The caller sets the gradients to None before the next backward pass.
#
# **Predict**: somebody forgets `finish()`. Which parameters become different on the ranks? Does the loss show it?
#
# <details><summary>Hint 1</summary>
#
# Cut the blocks with `parallel_block(block, group, SequenceColumnLinear, SequenceRowLinear)`. Treat `tokens`, `positions`,
# `norm`, and `unembed` as in exercise 10, with the new classes.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which parameters are whole? Those of every `nn.LayerNorm`, the `bias` of every `SequenceRowLinear`, and the positions'
# weight. Loop over `self.modules()`. In `forward`, use `self.positions.weight[:sequence].chunk(n)[r]`.
# </details>


# %% tags=["exercise"] exercise="sequence_parallel_gpt"
# %%px
class SequenceColumnLinear(ColumnParallelLinear):
    """Like `ColumnParallelLinear`, but x (batch, seq/N, inputs) is a part of the sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gather_linear, _ = sequence_operators(self.group)
        return gather_linear(x, self.weight, self.bias)


class SequenceRowLinear(RowParallelLinear):
    """Like `RowParallelLinear`, but return a part of the sequence, (batch, seq/N, outputs)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, scatter = sequence_operators(self.group)
        y = scatter(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class SequenceParallelGPT(nn.Module):
    """This rank's part of `model`, which is not used afterwards.

    `self(tokens)` returns (batch, seq, V/N). Outside attention and the MLP, each rank has its part
    of the sequence. Call `finish()` after each backward pass.
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
        """Sum, over the ranks, the gradients of which each rank has only a part."""
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
# Norms, the biases after `scatter`, and positions become different, because each rank updates them with its own tokens
# only. The ranks' copies differ more and more. The loss falls about as fast as before, so it does not show the mistake.
# </details>

# %%
# %%px --timeout 100
for name, make_optimizer in training.GPT_OPTIMIZERS.items():
    model = SequenceParallelGPT(fresh_gpt(), group)
    optimizer = make_optimizer(model.parameters())
    curves[name]["sequence parallel"] = [
        training.one_step(model, optimizer, *batch, shared_loss, after_backward=model.finish)
        for batch in batches
    ]
if rank == 0:
    training.print_same(
        {name: {k: v for k, v in runs.items() if k != "tensor parallel"}
         for name, runs in curves.items()},
        1e-3,
    )  # fmt: skip

worst = comm.allreduce(largest_gap(SequenceParallelGPT), op=max)
if rank == 0:
    print(f"every gradient is this rank's share of the serial model's: {worst < 1e-3}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves(
    "One curve: the GPT on one rank, and split over the ranks", curves, "loss (nats per byte)"
)

# %% [markdown]
# What does a rank keep of a block, and what does it send? Compare the measured values with your predictions:

# %%
# %%px
sequence_block = parallel_block(
    copy.deepcopy(fresh_gpt().blocks[0]), group, SequenceColumnLinear, SequenceRowLinear
)
blocks = {
    "serial": fresh_gpt().blocks[0],
    "tensor_parallel": block,
    "sequence_parallel": sequence_block,
}

# %%
# %%px
predicted = predict_activations(8, config.sequence_length, config.hidden_size, world_size)
kept = {}
for name, one in blocks.items():
    tokens = config.sequence_length // (world_size if name == "sequence_parallel" else 1)
    x = torch.randn(8, tokens, config.hidden_size, device=device, requires_grad=True)
    with Ledger() as sent:
        with memory.Saved(one) as saved:
            y = one(x)
        y.sum().backward()
    kept[name] = saved.bytes
    ratio = saved.bytes / predicted[name]
    if rank == 0:
        print(f"{name}: {saved.bytes:,} bytes kept, {ratio:.2f} of the prediction", end="")
        print(f"; {sent.ring_bytes():,.0f} bytes sent")

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
# PyTorch has all of this: `parallelize_module` takes a plan that assigns a style to each layer. `ColwiseParallel` cuts a
# layer by columns, and `RowwiseParallel` cuts it by rows. The next cell applies the same plan to the blocks of the GPT and
# leaves the rest whole on every rank. It uses the default group (Gloo on CPUs, NCCL on GPUs).
#
# The trap of exercise 2 exists here, too: `ColwiseParallel` cuts a fused QKV as one layer. So
# `parlab.libraries.tensor_parallel` first puts the rows of QKV in the order of the ranks.


# %%
# %%px --timeout 100
from parlab.libraries.tensor_parallel import parallelized_gpt


def our_gpt(on):
    model = fresh_gpt()
    for one in model.blocks:
        parallel_block(one, on)
    return model


ways = {"ours": our_gpt(dist.group.WORLD), "parallelize_module": parallelized_gpt(fresh_gpt())}
if device.type == "cpu":
    ways["ours on group"] = our_gpt(group)
steps = {}
for name, model in ways.items():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)  # some are DTensors
    loss_function = training.token_loss
    steps[name] = partial(training.one_step, model, optimizer, loss_function=loss_function)

# %%
# %%px --timeout 100
learned = {name: [step(*batch) for batch in batches[:6]] for name, step in steps.items()}
if rank == 0:
    training.print_same({"GPT": learned}, 1e-3)
for name, step in steps.items():
    with Ledger() as sent:
        step(*batches[0])
    if rank == 0:
        print(f"{name}: {sent.ring_bytes():,.0f} bytes sent")

# %% [markdown]
# **Predict**: which is faster on this machine, and by how much?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
calls = {name: partial(step, *batches[0]) for name, step in steps.items()}
seconds = timing.median_seconds(calls, comm, rounds=10)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
ratios = timing.relative_to("parallelize_module", seconds)
drawn, axes = plots.ratio_bars(
    "Time of a training step, relative to the library's",
    {"GPT": ratios},
    "time / time of parallelize_module on the default group",
)
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))

# %% [markdown]
# What to look for:
#
# - **The same bytes.** Both make four all-reduces in each layer. `DTensor` finds out where they belong from
#   the placement of each tensor. It looks this up for each operation in every step, and the ratio above shows how
#   much that costs.
# - **Nothing overlaps.** The ranks wait for the result of each all-reduce. On the CPUs of one machine, `group` uses
#   shared memory, so an all-reduce costs little. On Gloo, all-reduces can take most of the step.
# - **Do not split a model this small.** Tensor parallelism pays off only if the matrix products are large. The chapter
#   computes the smallest hidden size for which it does.
#
# # Going further
#
# - Start the all-reduce of f's backward pass with `async_op=True`, and compute the weight's gradient in the meantime.
#   Where do you have to wait?
# - `SequenceParallel` and `PrepareModuleInput` in the library's plan split the sequence as in part C, but each rank
#   keeps the gathered inputs, and does not gather them again. Which layouts do they need?
# - If there are fewer key-value heads than ranks, store each key-value head on several ranks. Over which ranks must you
#   then sum its gradient?
# - Use two groups: tensor parallelism inside a node, and data parallelism between nodes. For each gradient, over which
#   ranks do you average it?
# - Send in bfloat16, and keep the weights in float32. Where does the sum over N ranks lose digits?
