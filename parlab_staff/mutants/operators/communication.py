"""Changes communication: peers, roots, communicators, operations, and waiting."""

import ast
from collections.abc import Iterator

from parlab_staff.mutants.operators.kind import (
    Context,
    NodeOperator,
    Statements,
    attribute_call,
    parsed,
    statement,
)

BUFFERS = ("Send", "Recv", "Sendrecv", "Bcast", "Allreduce", "Reduce", "Isend", "Irecv")
NOT_WAITED = {"Send": "Isend", "Recv": "Irecv"}
REDUCTIONS = {"Allreduce": "MPI", "allreduce": "MPI", "all_reduce": "dist.ReduceOp"}


def other_communicator(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Use the communicator of all ranks, or of this rank alone, instead of the given one."""
    if _is_comm(node):
        yield parsed("MPI.COMM_WORLD")
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and _is_comm(node.func.value):
            function = parsed(f"MPI.COMM_SELF.{node.func.attr}")
            yield ast.Call(function, node.args, node.keywords)
        elif any(_is_comm(argument) for argument in node.args):
            alone = [parsed("MPI.COMM_SELF") if _is_comm(a) else a for a in node.args]
            yield ast.Call(node.func, alone, node.keywords)


def pickled(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Send Python objects, with a method in lower case, instead of the array's memory."""
    name = attribute_call(node)
    if name in BUFFERS:
        yield _renamed(node, name.lower())


def not_waited(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Start a message without waiting for it."""
    name = attribute_call(node)
    if name in NOT_WAITED:
        yield _renamed(node, NOT_WAITED[name])


def send_for_receive(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace `Send` with `Recv` from the same peer, or the reverse."""
    name = attribute_call(node)
    if name not in ("Send", "Recv"):
        return
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    peer = {"dest": "source", "source": "dest"}
    keywords = [ast.keyword(peer.get(k.arg or "", k.arg), k.value) for k in node.keywords]
    other = ast.Attribute(node.func.value, "Recv" if name == "Send" else "Send", ast.Load())
    yield ast.Call(other, node.args, keywords)


def one_after_the_other(node: ast.AST, context: Context) -> Iterator[Statements]:
    """Replace a call that sends and receives with a send and a receive, in both orders."""
    if not isinstance(node, ast.Expr) or attribute_call(node.value) != "Sendrecv":
        return
    assert isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
    comm = ast.unparse(node.value.func.value)
    named = {k.arg: ast.unparse(k.value) for k in node.value.keywords}
    outgoing = ast.unparse(node.value.args[0])
    send = f"{comm}.Send({outgoing}, dest={named['dest']})"
    receive = f"{comm}.Recv({named['recvbuf']}, source={named['source']})"
    yield [statement(send), statement(receive)]
    yield [statement(receive), statement(send)]


def other_reduction(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Compute the maximum instead of the sum."""
    name = attribute_call(node)
    if name in REDUCTIONS:
        assert isinstance(node, ast.Call)
        largest = ast.keyword("op", parsed(f"{REDUCTIONS[name]}.MAX"))
        others = [keyword for keyword in node.keywords if keyword.arg != "op"]
        yield ast.Call(node.func, node.args, [*others, largest])


def mean_for_sum(node: ast.AST, context: Context) -> Iterator[ast.AST | Statements]:
    """Divide a sum over ranks by the number of ranks."""
    if attribute_call(node) == "allreduce":
        assert isinstance(node, ast.Call)
        yield ast.BinOp(node, ast.Div(), parsed("comm.size"))
    elif isinstance(node, ast.Expr) and attribute_call(node.value) == "Allreduce":
        assert isinstance(node.value, ast.Call)
        yield [node, statement(f"{ast.unparse(node.value.args[-1])} /= comm.size")]
    elif attribute_call(node) == "all_reduce":
        assert isinstance(node, ast.Call)
        mean = ast.keyword("op", parsed("dist.ReduceOp.AVG"))
        yield ast.Call(node.func, node.args, [*node.keywords, mean])


def other_collective(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace a broadcast with a sum; or a sum with a broadcast, a reduction, or its input."""
    name = attribute_call(node)
    if name not in ("Allreduce", "allreduce", "Bcast"):
        return
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    owner, value = ast.unparse(node.func.value), ast.unparse(node.args[-1])
    if name == "Allreduce":
        yield parsed(f"{owner}.Bcast({value}, root=0)")
        yield parsed(f"{owner}.Reduce({value}, {value}.clone(), root=0)")
    elif name == "allreduce":
        yield parsed(f"{owner}.bcast({value})")
        yield parsed(value)
    elif name == "Bcast":
        yield parsed(f"{owner}.Allreduce(MPI.IN_PLACE, {ast.unparse(node.args[0])})")


def last_rank_is_root(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Use the last rank, or each rank itself, as the root."""
    if isinstance(node, ast.keyword) and node.arg == "root":
        yield ast.keyword("root", parsed("comm.size - 1"))
        yield ast.keyword("root", parsed("comm.rank"))
    elif isinstance(node, ast.Name) and node.id == "root" and isinstance(node.ctx, ast.Load):
        yield ast.Constant(0)


def _is_comm(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "comm" and isinstance(node.ctx, ast.Load)


def _renamed(node: ast.AST, name: str) -> ast.AST:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    function = ast.Attribute(node.func.value, name, ast.Load())
    return ast.Call(function, node.args, node.keywords)


NODE_OPERATORS: list[NodeOperator] = [
    other_communicator,
    pickled,
    not_waited,
    send_for_receive,
    one_after_the_other,
    other_reduction,
    mean_for_sum,
    other_collective,
    last_rank_is_root,
]
