"""Answers to `sharded_sampler`."""

import random

import numpy as np
import torch

from parlab_staff.answers import Answers

answers = Answers("sharded_sampler")


def shuffled(size, epoch):
    return torch.randperm(size, generator=torch.Generator().manual_seed(epoch))


def dealt(batches, rank, world_size):
    return [batch[rank::world_size] for batch in batches]


SHUFFLE = "torch.randperm(size, generator=torch.Generator().manual_seed(epoch))"
SEED = "manual_seed(epoch)"
SHARE = "batch[rank::world_size]"

answers.edit(
    "batch_of_each_rank",
    "batch_of_each_rank",
    ("split(batch_size)", "split(batch_size * world_size)"),
)
answers.edit("same_shuffle", "epoch_forgotten", (SEED, "manual_seed(0)"))
answers.edit("same_shuffle", "repeats_after_a_while", (SEED, "manual_seed(epoch % 10)"))
answers.edit(None, "not_shuffled", (SHUFFLE, "torch.arange(size)"), says="not shuffled")
answers.edit(None, "first_share", (SHARE, "batch[::world_size]"), says="the same share")
answers.edit(None, "seeded_by_rank", (SEED, "manual_seed(1000 * epoch + rank)"), says="times")
answers.edit("other_batches", "seeded_by_world_size", (SEED, "manual_seed(epoch + world_size)"))
answers.edit(None, "one_off", (SHARE, "batch[rank + 1 :: world_size]"), says="samples, expected")
answers.edit("returns_none", "no_return", ("return [batch", "[batch"))
answers.edit("wrong_dtype", "int32", (SHARE, SHARE + ".int()"))
answers.edit("wrong_type", "lists", (SHARE, SHARE + ".tolist()"))
answers.edit("wrong_shape", "columns", (SHARE, SHARE + "[:, None]"))
answers.edit(None, "unseeded", (SHUFFLE, "torch.randperm(size)"), says="two processes")


@answers.wrong("global_generator", says="torch's")
def global_seed(size, batch_size, epoch, rank, world_size):
    torch.manual_seed(epoch)
    return dealt(torch.randperm(size).split(batch_size), rank, world_size)


@answers.wrong(None, says="a second call")
def one_generator_forever(size, batch_size, epoch, rank, world_size, generator=[]):  # noqa: B006
    if not generator:
        generator.append(torch.Generator().manual_seed(0))
    return dealt(torch.randperm(size, generator=generator[0]).split(batch_size), rank, world_size)


@answers.wrong(None, says="steps, expected")
def tail_dropped(size, batch_size, epoch, rank, world_size):
    whole = shuffled(size, epoch)[: size // batch_size * batch_size]
    return dealt(whole.split(batch_size) if len(whole) else [], rank, world_size)


@answers.wrong("uneven_steps")
def data_set_dealt_first(size, batch_size, epoch, rank, world_size):
    return list(shuffled(size, epoch)[rank::world_size].split(max(batch_size // world_size, 1)))


@answers.wrong(None, says="has neighbors")
def only_inside_a_batch(size, batch_size, epoch, rank, world_size):
    generator = torch.Generator().manual_seed(epoch)
    batches = torch.arange(size).split(batch_size)
    mixed = [b[torch.randperm(len(b), generator=generator)] for b in batches]
    return dealt(mixed, rank, world_size)


@answers.wrong(None, says="mostly the same order")
def begins_elsewhere(size, batch_size, epoch, rank, world_size):
    return dealt(shuffled(size, 0).roll(epoch).split(batch_size), rank, world_size)


@answers.wrong(None, says="the same batches")
def batches_in_another_order(size, batch_size, epoch, rank, world_size):
    batches = shuffled(size, 0).split(batch_size)
    order = torch.randperm(len(batches) - 1, generator=torch.Generator().manual_seed(epoch))
    return dealt([*(batches[i] for i in order), batches[-1]], rank, world_size)


@answers.wrong("wrong_dtype", says="an empty share")
def empty_shares_as_floats(size, batch_size, epoch, rank, world_size):
    batches = [b.tolist()[rank::world_size] for b in shuffled(size, epoch).split(batch_size)]
    return [torch.tensor(batch) for batch in batches]


@answers.wrong("lab_communicator")
def sent_by_rank_0(size, batch_size, epoch, rank, world_size):
    from parlab.rank import comm

    shuffle = comm.bcast(torch.randperm(size), root=0)
    return dealt(shuffle.split(batch_size), rank, world_size)


@answers.right
def numpys_own_generator(size, batch_size, epoch, rank, world_size):
    shuffle = np.random.default_rng([7, epoch]).permutation(size)
    batches = [shuffle[i : i + batch_size] for i in range(0, size, batch_size)]
    return [torch.from_numpy(b[rank::world_size].copy()) for b in batches]


@answers.right
def pythons_own_generator(size, batch_size, epoch, rank, world_size):
    shuffle = random.Random(epoch).sample(range(size), size)
    batches = torch.tensor(shuffle).split(batch_size)
    return dealt(batches, rank, world_size)


@answers.right
def shares_in_a_row(size, batch_size, epoch, rank, world_size):
    batches = shuffled(size, 1000 + epoch).split(batch_size)
    return [batch.tensor_split(world_size)[rank] for batch in batches]


@answers.right
def last_ranks_first(size, batch_size, epoch, rank, world_size):
    return dealt(shuffled(size, epoch).split(batch_size), world_size - 1 - rank, world_size)


@answers.right
def another_shuffle_for_each_size(size, batch_size, epoch, rank, world_size):
    shuffle = shuffled(size, hash((epoch, size, batch_size)))
    return dealt(shuffle.split(batch_size), rank, world_size)
