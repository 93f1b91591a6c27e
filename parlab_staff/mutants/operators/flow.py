"""Drops, repeats, reorders, and moves statements, and shortens loops."""

import ast
from collections.abc import Iterator

from parlab_staff.mutants.operators.kind import (
    BlockOperator,
    Context,
    NodeOperator,
    Statements,
    parsed,
)
from parlab_staff.mutants.operators.values import ARITHMETIC

Loop = ast.For | ast.While


def statement_dropped(block: Statements, n: int, context: Context) -> Iterator[Statements]:
    """Drop a line or a whole block."""
    yield [*block[:n], *block[n + 1 :]] or [ast.Pass()]


def statements_swapped(block: Statements, n: int, context: Context) -> Iterator[Statements]:
    """Swap two neighboring statements."""
    if n + 1 < len(block):
        yield [*block[:n], block[n + 1], block[n], *block[n + 2 :]]


def statement_twice(block: Statements, n: int, context: Context) -> Iterator[Statements]:
    """Repeat a call or an augmented assignment."""
    if isinstance(block[n], ast.AugAssign) or _is_call(block[n]):
        yield [*block[:n], block[n], *block[n:]]


def moved_out(block: Statements, n: int, context: Context) -> Iterator[Statements]:
    """Move the last line of a block after it, or the first line of a loop before it."""
    inner = getattr(block[n], "body", [])
    if len(inner) < 2 or not isinstance(block[n], Loop | ast.If | ast.With):
        return
    yield [*block[:n], _with_body(block[n], inner[:-1]), inner[-1], *block[n + 1 :]]
    if isinstance(block[n], Loop):
        yield [*block[:n], inner[0], _with_body(block[n], inner[1:]), *block[n + 1 :]]


def moved_in(block: Statements, n: int, context: Context) -> Iterator[Statements]:
    """Move the line after a block to its end, or the line before a loop to its start."""
    if isinstance(block[n], Loop | ast.If | ast.With) and n + 1 < len(block):
        body = [*block[n].body, block[n + 1]]
        yield [*block[:n], _with_body(block[n], body), *block[n + 2 :]]
    if n + 1 < len(block) and isinstance(block[n + 1], Loop):
        body = [block[n], *block[n + 1].body]
        yield [*block[:n], _with_body(block[n + 1], body), *block[n + 2 :]]


def one_rank_only(block: Statements, n: int, context: Context) -> Iterator[Statements]:
    """Let only rank 0 run a line that all ranks should run."""
    if "comm" in context.arguments and isinstance(block[n], ast.Expr | ast.AugAssign):
        alone = ast.If(parsed("comm.rank == 0"), [block[n]], [])
        yield [*block[:n], alone, *block[n + 1 :]]


def loop_short(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Skip the first or the last round of a loop, or reverse it."""
    if not isinstance(node, ast.For | ast.comprehension):
        return
    rounds = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
    for short in (ast.Slice(ast.Constant(1)), ast.Slice(None, ast.Constant(-1))):
        yield _over(node, ast.Subscript(rounds, short, ast.Load()))
    yield _over(node, ast.Call(ast.Name("reversed", ast.Load()), [rounds], []))


def jump(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace `continue` with `break`, or the reverse."""
    if isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Break):
        yield ast.Continue()


def without_context(node: ast.AST, context: Context) -> Iterator[Statements]:
    """Run the lines of a `with` block without it."""
    if isinstance(node, ast.With):
        yield node.body


def returned(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Return None, or several results in reverse order."""
    if not isinstance(node, ast.Return) or node.value is None:
        return
    yield ast.Return(ast.Constant(None))
    if isinstance(node.value, ast.Tuple):
        yield ast.Return(ast.Tuple(node.value.elts[::-1], ast.Load()))


def in_place(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Bind a name to a new object instead of changing the old one, or use another operation."""
    if isinstance(node, ast.AugAssign):
        if other := ARITHMETIC.get(type(node.op)):
            yield ast.AugAssign(node.target, other(), node.value)
        if not _is_number(node, context):
            yield ast.Assign([node.target], ast.BinOp(_read(node.target), node.op, node.value))
        yield ast.Assign([node.target], node.value)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0].value
        if isinstance(target, ast.Name):
            yield ast.Assign([ast.Name(target.id, ast.Store())], node.value)
        elif isinstance(target, ast.Attribute):
            yield ast.Assign([ast.Attribute(target.value, target.attr, ast.Store())], node.value)


def _is_number(node: ast.AugAssign, context: Context) -> bool:
    """Return True if this changes a number, so that a new object has the same effect."""
    known = isinstance(node.target, ast.Name) and node.target.id in context.numbers
    return known or isinstance(node.value, ast.Constant)


def _is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _with_body(node: ast.stmt, body: Statements) -> ast.stmt:
    fields = dict(ast.iter_fields(node)) | {"body": body or [ast.Pass()]}
    return type(node)(**fields)


def _over(node: ast.For | ast.comprehension, rounds: ast.expr) -> ast.AST:
    return type(node)(**(dict(ast.iter_fields(node)) | {"iter": rounds}))


def _read(target: ast.expr) -> ast.expr:
    return parsed(ast.unparse(target))


NODE_OPERATORS: list[NodeOperator] = [loop_short, jump, without_context, returned, in_place]
BLOCK_OPERATORS: list[BlockOperator] = [
    statement_dropped,
    statements_swapped,
    statement_twice,
    moved_out,
    moved_in,
    one_rank_only,
]
