"""Data and tensor parallelism in JAX: a small GPT on any number of processes.

Needs jax, and torch and the course for its data. Each process controls its own devices, all run the
same program, and the compiler inserts the collectives. torchrun only starts the processes:

    torchrun --nproc-per-node 2 --local-addr 127.0.0.1 examples/10_jax.py
    srun python examples/10_jax.py

It uses the GPUs that JAX finds, and otherwise CPUs and Gloo. `--tensor-parallel N` splits each
layer over N devices (default: all). The other devices have replicas, which split the batch. With
Gloo, each machine must be able to resolve its own name.
"""

import argparse
import os
import re
import socket
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from parlab.data import text

VOCABULARY, SEQUENCE, HIDDEN, HEADS, LAYERS = 256, 64, 64, 4, 2
# How each parameter is split. No annotation is needed anywhere else.
BLOCK = {
    "norm_1": P(),
    "wq": P(None, "tp"),  # (hidden, heads, head size)
    "wk": P(None, "tp"),
    "wv": P(None, "tp"),
    "wo": P("tp"),  # (heads, head size, hidden)
    "norm_2": P(),
    "w1": P(None, "tp"),  # (hidden, 4 hidden)
    "b1": P("tp"),
    "w2": P("tp"),  # (4 hidden, hidden)
    "b2": P(),
}
SPECS = {"tokens": P(), "positions": P(), "norm": P(), "blocks": [BLOCK] * LAYERS}
Parameters = dict  # arrays by name, and a list of blocks


def start_processes() -> None:
    """Connect the processes that torchrun or Slurm started."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        jax.distributed.initialize()  # JAX itself detects processes that Slurm started
        return
    from torch.distributed import TCPStore

    # torchrun's own port is in use, so process 0 sends another port to the others.
    host, rank, count = (os.environ[name] for name in ("MASTER_ADDR", "RANK", "WORLD_SIZE"))
    store = TCPStore(host, int(os.environ["MASTER_PORT"]))
    if rank == "0":
        with socket.socket() as free:
            free.bind((host, 0))
            store.set("jax", f"{host}:{free.getsockname()[1]}")
    gpu = int(os.environ["LOCAL_RANK"])  # otherwise, each process would take all GPUs
    jax.distributed.initialize(store.get("jax").decode(), int(count), int(rank), gpu)


def create(seed: int) -> Parameters:
    """Draw the parameters of the whole model."""
    draw = np.random.default_rng(seed)

    def weight(*shape: int, inputs: int) -> np.ndarray:
        return draw.normal(0, inputs**-0.5, shape).astype(np.float32)

    def block() -> Parameters:
        heads = HIDDEN, HEADS, HIDDEN // HEADS
        return {
            "norm_1": np.ones(HIDDEN, np.float32),
            **{name: weight(*heads, inputs=HIDDEN) for name in ("wq", "wk", "wv")},
            "wo": weight(*heads[1:], HIDDEN, inputs=HIDDEN),
            "norm_2": np.ones(HIDDEN, np.float32),
            "w1": weight(HIDDEN, 4 * HIDDEN, inputs=HIDDEN),
            "b1": np.zeros(4 * HIDDEN, np.float32),
            "w2": weight(4 * HIDDEN, HIDDEN, inputs=4 * HIDDEN),
            "b2": np.zeros(HIDDEN, np.float32),
        }

    return {
        "tokens": weight(VOCABULARY, HIDDEN, inputs=2500),
        "positions": weight(SEQUENCE, HIDDEN, inputs=2500),
        "norm": np.ones(HIDDEN, np.float32),
        "blocks": [block() for _ in range(LAYERS)],
    }


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def loss_of(model: Parameters, windows: jax.Array) -> jax.Array:
    """Return the mean loss of (batch, sequence + 1) tokens, written as for one device."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    x = model["tokens"][inputs] + model["positions"]
    for block in model["blocks"]:
        y = normalized(x, block["norm_1"])
        q, k, v = (jnp.einsum("bsh,had->bsad", y, block[name]) for name in ("wq", "wk", "wv"))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("bsad,adh->bsh", y, block["wo"])
        y = normalized(x, block["norm_2"])
        x = x + jax.nn.gelu(y @ block["w1"] + block["b1"]) @ block["w2"] + block["b2"]
    logs = jax.nn.log_softmax(normalized(x, model["norm"]) @ model["tokens"].T)
    return -jnp.take_along_axis(logs, targets[..., None], -1).mean()


def adam_step(
    model: Parameters, first: Parameters, second: Parameters, step: jax.Array, windows: jax.Array
) -> tuple[Parameters, Parameters, Parameters, jax.Array]:
    """Return the parameters and Adam's moments after a step, and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(model, windows)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradients)

    def updated(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - 3e-3 * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)

    return jax.tree.map(updated, model, first, second), first, second, loss


def place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Put each device's part of an array, which all processes have, on that device."""
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tensor-parallel", type=int, help="devices that share a layer")
    arguments = parser.parse_args()

    start_processes()
    devices = np.array(jax.devices())  # of all processes
    ranks = arguments.tensor_parallel or len(devices)
    if len(devices) % ranks or HEADS % ranks or arguments.global_batch % (len(devices) // ranks):
        raise SystemExit(
            f"--tensor-parallel must divide {len(devices)}, the number of devices, and {HEADS}, "
            "the number of heads. The number of replicas must divide --global-batch"
        )
    # Neighbors share layers: the devices of a process have consecutive numbers.
    mesh = Mesh(devices.reshape(-1, ranks), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    to_sharding = partial(NamedSharding, mesh)
    shardings = jax.tree.map(to_sharding, SPECS, is_leaf=lambda spec: isinstance(spec, P))
    whole, by_batch = to_sharding(P()), to_sharding(P("dp"))

    model = jax.tree.map(place, create(seed=0), shardings)
    zeros = jax.tree.map(jnp.zeros_like, model)
    inputs = (shardings, shardings, shardings, whole, by_batch)
    results = (shardings, shardings, shardings, whole)
    step = jax.jit(adam_step, in_shardings=inputs, out_shardings=results)

    windows = text("train", arguments.steps * arguments.global_batch * (SEQUENCE + 1))
    batches = windows.astype(np.int32).reshape(arguments.steps, arguments.global_batch, -1)
    state = model, zeros, zeros
    recent = 0.0  # the mean loss of the last ten steps
    for number, batch in enumerate(batches, start=1):
        arrays = *state, np.float32(number), place(batch, by_batch)
        if number == 1:
            program = step.lower(*arrays).compile()
        *state, loss = program(*arrays)
        recent += float(loss) / 10
        if number % 10 == 0:
            if jax.process_index() == 0:
                print(f"steps {number - 9} to {number}: loss {recent:.4f}")
            recent = 0.0

    inserted = Counter(re.findall(r" (all-[a-z]+|reduce-scatter)(?:-start)?\(", program.as_text()))
    held = sum(part.addressable_data(0).size for part in jax.tree.leaves(state[0]["blocks"]))
    total = sum(part.size for part in jax.tree.leaves(state[0]["blocks"]))
    if jax.process_index() == 0:
        print(f"device 0 holds {held:,} of the blocks' {total:,} parameters: 1/{total / held:.2f}")
        print(f"the compiler inserted into a step: {dict(inserted)}")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
