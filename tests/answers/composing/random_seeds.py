"""Answers to `random_seeds`."""

import hashlib
import math
import random

import numpy as np

from parlab_staff.answers import Answers

answers = Answers("random_seeds")

KEY = "(*key, seed, layer)"
WEIGHTS = 'hashed("weights")'
REPLICATED = 'hashed("replicated", at["dp"])'
SHARDED = 'hashed("sharded", at["dp"], at["tp"])'
NUMBER = 'int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") // 2'
IN_MESH = "if not 0 <= rank < math.prod(mesh.values()):"

answers.edit("of_place", "weights_of_each_rank", (WEIGHTS, 'hashed("weights", rank)'))
answers.edit("of_place", "weights_of_the_mesh", (WEIGHTS, 'hashed("weights", mesh["tp"])'))
answers.edit("of_place", "weights_of_the_order", (WEIGHTS, 'hashed("weights", *mesh)'))
answers.edit("of_place", "replicated_on_each_rank", (REPLICATED, 'hashed("replicated", rank)'))
answers.edit("of_place", "sharded_by_rank", (SHARDED, 'hashed("sharded", rank)'))
answers.edit("of_process", "hash_of_a_text", (NUMBER, "hash(text) % 2**63"))
answers.edit("alike", "no_layer", (KEY, "(*key, seed)"))
answers.edit("alike", "no_seed", (KEY, "(*key, layer)"))
answers.edit("alike", "no_purpose", (KEY, "(*(key[1:] or [0]), seed, layer)"))
answers.edit("alike", "added_and_hashed", (KEY, "(*key, seed + layer)"))
answers.edit("alike", "no_separator", ('" ".join', '"".join'))
for name, packed in {
    "a_hundred_for_dp": 'at["dp"] * 100 + at["tp"]',
    "twelve_bits": 'at["dp"] * 4096 + at["tp"]',
    "for_tp": 'at["tp"] * 40_000 + at["dp"]',
    "a_bit_too_few": 'at["dp"] * 49_999 + at["tp"]',
    "bitwise": '(at["dp"] << 12) ^ at["tp"]',
    "bytes": 'at["dp"] % 256, at["tp"] % 256',
    "two_bytes": 'at["dp"] % 65_536, at["tp"] % 65_536',
}.items():
    answers.edit("alike", name, (SHARDED, f'hashed("sharded", {packed})'))
answers.edit("alike", "two_bytes_of_the_seed", (KEY, "(*key, seed % 65_536, layer)"))
answers.right_edit("enough_room", (SHARDED, 'hashed("sharded", at["dp"] * 100_000 + at["tp"])'))
answers.edit(
    "low_bits", "high_bits", (NUMBER, f"({NUMBER}) // 2**32 * 2**32")
)  # fmt: skip
answers.edit(None, "too_large", (" // 2", ""), says="which is not in [0, 2⁶³)")
answers.edit("wrong_type", "one_number", ("return (\n", "return sum((\n"), (
    f"{SHARDED},\n    )", f"{SHARDED},\n    ))"), says="three ints")  # fmt: skip
answers.edit(None, "no_replicated", (f"        {REPLICATED},\n", ""), says="it returns 2 numbers")
answers.edit("not_refused", "no_upper_bound", (IN_MESH, "if rank < 0:"), (
    "np.unravel_index(rank,", "np.unravel_index(rank % math.prod(mesh.values()),"))  # fmt: skip
answers.edit("not_refused", "no_lower_bound", (IN_MESH, "if rank >= math.prod(mesh.values()):"), (
    "np.unravel_index(rank,", "np.unravel_index(rank % math.prod(mesh.values()),"))  # fmt: skip
answers.edit(None, "not_named", (
    'f"rank {rank} is not in the mesh {dict(mesh)}"', 'f"{rank} is not in the mesh"'))  # fmt: skip


def at(rank, mesh):
    """Return the coordinates of a rank."""
    coordinates = {}
    for dim in reversed(mesh):
        rank, coordinates[dim] = divmod(rank, mesh[dim])
    if rank:
        raise ValueError("rank is not in the mesh")
    return coordinates


@answers.wrong("alike")
def thousand_for_a_layer(seed, layer, rank, mesh):
    """Leaves 1000 numbers for each layer, which are enough for small meshes only."""
    here, base = at(rank, mesh), 1_000_000 * seed + 1000 * layer
    return base, base + 1 + here["dp"], base + 500 + 16 * here["dp"] + here["tp"]


@answers.wrong("alike")
def nine_bits_for_a_layer(seed, layer, rank, mesh):
    here = at(rank, mesh)
    keys = [(1, seed, layer), (2, seed, layer, here["dp"])]
    keys.append((3, seed, here["dp"], here["tp"] * 512 + layer))
    return [hash(key) % 2**63 for key in keys]


@answers.wrong("alike")
def digits(seed, layer, rank, mesh):
    """Leaves four decimal digits for "tp"."""
    here, base = at(rank, mesh), (seed * 1000 + layer) * 10**9
    replicated = base + (here["dp"] + 1) * 10**4
    return base, replicated, replicated + here["tp"] + 1


@answers.wrong("alike")
def added(seed, layer, rank, mesh):
    """Adds everything, as many do."""
    here, far = at(rank, mesh), 10**9
    replicated = far + seed + layer + here["dp"]
    return seed + layer, replicated, 2 * far + seed + layer + here["dp"] * mesh["tp"] + here["tp"]


@answers.wrong("low_bits")
def shifted(seed, layer, rank, mesh):
    here = at(rank, mesh)
    number = (seed << 40) + (layer << 20)
    return number, number + 1 + here["dp"], number + 100_001 + here["dp"] * mesh["tp"] + here["tp"]


@answers.wrong("global_generator")
def global_generator(seed, layer, rank, mesh):
    here, numbers = at(rank, mesh), []
    for key in ("w",), ("r", here["dp"]), ("s", here["dp"], here["tp"]):
        random.seed(f"{key} {seed} {layer}")
        numbers.append(random.getrandbits(63))
    return tuple(numbers)


@answers.wrong("wrong_type")
def numpy_numbers(seed, layer, rank, mesh):
    return tuple(np.int64(number) for number in answers.reference()(seed, layer, rank, mesh))


@answers.wrong("of_place")
def counted(seed, layer, rank, mesh):
    """Counts its calls."""
    counted.calls = getattr(counted, "calls", 0) + 1
    return tuple(n // 2 + counted.calls for n in answers.reference()(seed, layer, rank, mesh))


KEPT, GENERATORS = {}, {}


def keys_at(seed, layer, rank, mesh):
    here = at(rank, mesh)
    yield "w", seed, layer
    yield "r", seed, layer, here["dp"]
    yield "s", seed, layer, here["dp"], here["tp"]


@answers.wrong("of_process")
def drawn_when_first_asked(seed, layer, rank, mesh):
    """Draws the seed of a key when it first needs it, and keeps it."""
    generator = GENERATORS.setdefault(seed, random.Random(seed))
    keys = list(keys_at(seed, layer, rank, mesh))
    for key in keys:
        if key not in KEPT:
            KEPT[key] = generator.getrandbits(63)
    return tuple(KEPT[key] for key in keys)


@answers.wrong("of_process")
def numbered_when_first_asked(seed, layer, rank, mesh):
    keys = keys_at(seed, layer, rank, mesh)
    return tuple(KEPT.setdefault(("n", key), len(KEPT)) for key in keys)


@answers.right
def kept(seed, layer, rank, mesh):
    """Remembers seeds that do not depend on the order of calls."""
    for key in (keys := list(keys_at(seed, layer, rank, mesh))):
        if repr(key) not in KEPT:
            KEPT[repr(key)] = random.Random(repr(key)).getrandbits(63)
    return [KEPT[repr(key)] for key in keys]


@answers.right
def counted_combinations(seed, layer, rank, mesh):
    """Gives each combination its own number, with room for all layers and ranks."""
    here = at(rank, mesh)
    number = (seed * 1000 + layer) * 300_000
    sharded = number + 200_000 + here["dp"] * mesh["tp"] + here["tp"]
    return number, number + 100_000 + here["dp"], sharded


@answers.right
def hash_of_numbers(seed, layer, rank, mesh):
    """Python's hash of numbers is the same in every process."""
    if rank < 0 or rank >= math.prod(mesh.values()):
        raise ValueError(f"rank={rank}: the mesh has {math.prod(mesh.values())}")
    here = at(rank, mesh)
    keys = [(1, seed, layer), (2, seed, layer, here["dp"])]
    keys.append((3, seed, layer, here["dp"], here["tp"]))
    return tuple(hash(key) % 2**63 for key in keys)


@answers.right
def one_hash(seed, layer, rank, mesh):
    """Takes three numbers from one digest, and blake2 for it."""
    here = at(rank, mesh)

    def digest(*key):
        return hashlib.blake2b(repr(key).encode(), digest_size=7).digest()

    keys = [["w"], ["r", here["dp"]], ["s", here["tp"], here["dp"]]]
    return [int.from_bytes(digest(seed, layer, *key), "little") for key in keys]
