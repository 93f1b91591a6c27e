"""What the stages of ZeRO send.

Each rank trains a model with two layers. Here, a layer is an array of weights, its gradient is the
same array times a number that depends on the rank, and the optimizer subtracts a tenth of the mean
gradient. From stage 1 on, a rank updates only its own shard of each layer.

**Predict**, for stages 0, 1, and 3, which collectives a step calls, and how many bytes a rank sends
if each of them runs on a ring. Then set `STAGE`, run the program, and compare with the costs below
the picture. Do the weights depend on the stage?

Then change the program:

- In stage 3, each layer is gathered twice. What do you save if a rank keeps the layer from the
  forward pass until the backward pass? What does it cost?
- In stage 1, use an all-reduce instead of the reduce-scatter. By how much does the traffic grow?
- Stage 2 sends the same as stage 1. What does a rank free earlier there?
"""

STAGE = 1
LAYERS, SIZE = 2, 4 * world_size


def reduced(gradient):
    """Return the shard of the mean gradient that this rank updates."""
    shard = np.empty(SIZE // world_size)
    comm.Reduce_scatter_block(gradient, shard)
    return shard / world_size


def gathered(shard):
    layer = np.empty(SIZE)
    comm.Allgather(shard, layer)
    return layer


def own(layer):
    return layer.reshape(world_size, -1)[rank].copy()


full = [np.arange(SIZE, dtype=float) + layer for layer in range(LAYERS)]
shards = [own(layer) for layer in full]
if STAGE == 3:
    full = [None] * LAYERS  # a rank keeps its shards alone

for layer in range(LAYERS):  # the forward pass
    weights = gathered(shards[layer]) if STAGE == 3 else full[layer]

for layer in reversed(range(LAYERS)):  # the backward pass, and the optimizer
    weights = gathered(shards[layer]) if STAGE == 3 else full[layer]
    gradient = (rank + 1) * weights
    if STAGE == 0:
        total = np.empty(SIZE)
        comm.Allreduce(gradient, total)
        full[layer] = weights - 0.1 * total / world_size
    else:
        shards[layer] -= 0.1 * reduced(gradient)
    if STAGE in (1, 2):
        full[layer] = gathered(shards[layer])

mine = [own(layer) for layer in full] if STAGE == 0 else shards
print("\n".join(f"layer {layer}: {shard}" for layer, shard in enumerate(mine)))
