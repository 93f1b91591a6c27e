"""Random programs for ranks. Each rank's program may differ a little from the others.

Some programs end, some leave messages, some raise errors, and most deadlock.
"""

from random import Random

RANKS = 4

MPI_SET_UP = "import numpy as np\nx, y = np.ones({size}), np.ones({size})"
MPI_STATEMENTS = [
    "comm.Barrier()",
    "comm.allreduce(rank)",
    "comm.Allreduce(x, y)",
    "comm.bcast(rank, root={peer})",
    "comm.Bcast(x, root={peer})",
    "comm.gather(rank, root={peer})",
    "comm.Reduce(x, y, root={peer})",
    "comm.allgather(rank)",
    "comm.alltoall([1, 2, 3, 4])",
    "comm.Send(x, dest=(rank + 1) % 4)",
    "comm.Recv(y, source=(rank - 1) % 4)",
    "comm.Ssend(x, dest={peer})",
    "comm.send(rank, dest={peer}, tag={tag})",
    "comm.recv(source={peer}, tag={tag})",
    "comm.recv(source=MPI.ANY_SOURCE)",
    "comm.sendrecv(rank, dest=(rank + 1) % 4, source=(rank - 1) % 4)",
    "request = comm.Isend(x, dest=(rank + 1) % 4)",
    "comm.Irecv(y, source={peer}).Wait()",
    "MPI.Request.Waitall([comm.Irecv(y, source=rank - 1), comm.Isend(x, dest=(rank + 1) % 4)])",
    "MPI.Request.waitany([comm.irecv(source={peer}), comm.irecv(source=(rank + 1) % 4)])",
    "MPI.COMM_WORLD.Barrier()",
    "MPI.COMM_SELF.recv(source=0)",
    "mine = comm.Split(rank % 2); mine.Barrier()",
    "mine = comm.Dup(); mine.allreduce(1); mine.Free()",
    "comm.Ibarrier()",
    "comm.probe(source={peer})",
]
TORCH_SET_UP = "x, y = torch.ones({size}), torch.ones({size})"
TORCH_STATEMENTS = [
    "dist.all_reduce(x)",
    "dist.all_reduce(x, group=group)",
    "dist.broadcast(x, src={peer})",
    "dist.broadcast(x, src={peer}, group=group)",
    "dist.barrier()",
    "dist.barrier(group=group)",
    "dist.reduce(x, dst={peer})",
    "dist.send(x, dst=(rank + 1) % 4)",
    "dist.recv(y, src=(rank - 1) % 4)",
    "dist.send(x, dst=(rank + 1) % 4, group=group)",
    "dist.recv(y, src=(rank - 1) % 4, group=group)",
    "work = dist.isend(x, dst=(rank + 1) % 4); dist.irecv(y, src=(rank - 1) % 4).wait()",
    "dist.all_gather([torch.empty_like(x) for _ in range(4)], x)",
    "dist.all_reduce(x, async_op=True).wait()",
    "other = dist.new_group(); dist.destroy_process_group(other)",
    "comm.Barrier()",
]
COMMON = [
    "time.sleep({fraction})",
    "print('rank', rank, 'of', world_size)",
    "raise ValueError('random')",
    "while True: pass",
]


def mpi(random: Random) -> str:
    """Return a random program that uses mpi4py."""
    return _program(random, MPI_SET_UP, MPI_STATEMENTS)


def torch(random: Random) -> str:
    """Return a random program that uses torch.distributed, over Gloo and over MPI."""
    return _program(random, TORCH_SET_UP, TORCH_STATEMENTS)


def _program(random: Random, set_up: str, statements: list[str]) -> str:
    common = [_statement(random, statements) for _ in range(random.randint(1, 4))]
    lines = [set_up.format(size=random.choice([1, 10, 1000, 200_000]))]
    for rank in range(RANKS):
        own = list(common)
        if random.random() < 0.4:
            _change(random, own, statements)
        lines.append(f"if rank == {rank}:")
        lines += [f"    {statement}" for statement in own or ["pass"]]
    return "\n".join(lines)


def _change(random: Random, program: list[str], statements: list[str]) -> None:
    """Insert, delete, or move a statement of one rank's program."""
    at = random.randrange(len(program))
    match random.choice(["insert", "delete", "move", "common"]):
        case "insert":
            program.insert(at, _statement(random, statements))
        case "delete":
            del program[at]
        case "move":
            program.insert(random.randrange(len(program)), program.pop(at))
        case "common":
            program.insert(at, _statement(random, COMMON))


def _statement(random: Random, statements: list[str]) -> str:
    return random.choice(statements).format(
        peer=random.randrange(RANKS), tag=random.randrange(2), fraction=round(random.random(), 2)
    )
