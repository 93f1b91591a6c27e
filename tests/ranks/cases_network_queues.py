"""Times of messages on an emulated network, and how messages and collectives queue on its links."""

from array import array

import torch
import torch.distributed as dist

from parlab import network
from parlab.network import compute
from parlab.network.clock import now
from parlab.network.links import Links
from tests.ranks.network_times import CALL, LATE, NETWORK, assert_takes, x
from tests.support.on_ranks import Cases, World

cases = Cases()


@cases.add()
def collectives_of_a_rank_queue(world: World) -> None:
    def three() -> None:
        works = [dist.all_reduce(x(), group=world.group, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    assert_takes(world, 3 * NETWORK.collective("all_reduce", 400).seconds, three)


@cases.add()
def collectives_of_two_groups_queue_where_they_share_a_link(world: World) -> None:
    pairs = [network.sub_group(world.group, pair) for pair in ([0, 2], [1, 3])]
    every = [world.group, pairs[world.rank % 2]]

    def both() -> None:
        works = []
        for group in every:
            works.append(dist.all_reduce(x(), group=group, async_op=True))
            world.comm.Barrier()  # all ranks have called the first before any calls the second
        for work in works:
            work.wait()

    whole = NETWORK.collective("all_reduce", 400).seconds
    pair = NETWORK.collective("all_reduce", 400, [0, 2]).seconds
    assert_takes(world, whole + pair, both)


@cases.add()
def a_collective_occupies_both_directions_of_its_links(world: World) -> None:
    links = Links(NETWORK, world.comm)
    for ends in ((0, 3), (1, 2)):  # the source or the destination is in the collective
        if world.rank == 0:
            with links.shared.locked() as free:
                free[:] = array("d", len(free) * [0.0])
                assert links.collective(0.0, 1.0, [0, 2]) == 1.0
            assert links.message(0.0, 400, *ends) == 1.0 + NETWORK.message(400, *ends), ends


@cases.add()
def a_node_and_the_network_do_not_queue_on_each_other(world: World) -> None:
    nodes = [network.sub_group(world.group, node) for node in ([0, 1], [2, 3])]
    pairs = [network.sub_group(world.group, pair) for pair in ([0, 2], [1, 3])]
    own = [nodes[world.rank // 2], pairs[world.rank % 2]]

    def both() -> None:
        works = [dist.all_reduce(x(1000), group=g, async_op=True) for g in own]
        for work in works:
            work.wait()

    inside = NETWORK.collective("all_reduce", 4000, [0, 1]).seconds
    between = NETWORK.collective("all_reduce", 4000, [0, 2]).seconds
    assert between > inside > LATE
    assert_takes(world, between, both)


@cases.add(pair=[(0, 1), (0, 2), (3, 0)])
def a_message_takes_what_the_model_says(world: World, pair: tuple[int, int]) -> None:
    source, destination = pair

    def send() -> None:
        if world.rank == source:
            dist.send(x(), destination, group=world.group)
        elif world.rank == destination:
            dist.recv(x(), source, group=world.group)

    assert_takes(world, NETWORK.message(400, source, destination), send, needs_all=False)


@cases.add()
def messages_queue_at_both_ends(world: World) -> None:
    """Rank 0 sends two messages, and rank 2 receives two. One of them is the same message."""
    messages = [(0, 2), (0, 3), (1, 2)]

    def send() -> None:
        works = [
            dist.isend(x(), there, group=world.group)
            if here == world.rank
            else dist.irecv(x(), here, group=world.group)
            for here, there in messages
            if world.rank in (here, there)
        ]
        for work in works:
            work.wait()

    assert_takes(world, 2 * NETWORK.message(400, 0, 2), send, needs_all=False)


@cases.add()
def messages_go_both_ways_at_once(world: World) -> None:
    other = (world.rank + 2) % 4

    def exchange() -> None:
        sent = dist.isend(x(), other, group=world.group)
        dist.recv(x(), other, group=world.group)
        sent.wait()

    assert_takes(world, NETWORK.message(400, 0, 2), exchange, needs_all=False)


@cases.add()
def a_message_travels_before_its_receiver_waits(world: World) -> None:
    """It starts when it is sent, and has arrived when the receiver waits for it."""

    def late() -> None:
        if world.rank == 0:
            dist.send(x(), 2, group=world.group)
        elif world.rank == 2:
            compute(0.4)
            dist.recv(x(), 0, group=world.group)

    assert_takes(world, 0.4, late, needs_all=False)


@cases.add()
def waits_in_another_order_than_sent(world: World) -> None:
    """If the second message is waited for first, it ends at its own time."""
    again = []
    for _ in range(4):
        world.comm.Barrier()
        if world.rank == 0:
            begun = now()
            dist.isend(torch.ones(1), 2, group=world.group)
            dist.send(torch.full((100,), 2.0), 2, group=world.group)
            world.comm.send(begun, 2)
        elif world.rank == 2:
            first, second = torch.zeros(1), torch.zeros(100)
            works = [dist.irecv(t, 0, group=world.group) for t in (first, second)]
            works[1].wait()
            second_came = now()
            works[0].wait()
            again.append(now() - second_came)
            assert second_came - world.comm.recv(source=0) > 2 * CALL
            assert first[0] == 1 and second[0] == 2
    assert world.rank != 2 or min(again) < CALL, f"the first message took {again} s more"
