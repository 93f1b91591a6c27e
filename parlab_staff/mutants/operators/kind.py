"""The types of operators, and the information about a function that they use."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Statements = list[ast.stmt]
# Yields replacements for a node: a node, or several statements for a statement.
NodeOperator = Callable[[ast.AST, "Context"], Iterator["ast.AST | Statements"]]
# Yields replacements for a block in which the statement with this index is changed.
BlockOperator = Callable[[Statements, int, "Context"], Iterator[Statements]]


@dataclass(frozen=True)
class Context:
    """The function around a node.

    `twins` are names that are easily confused, such as `right` and `left`: names bound by the same
    assignment, and parameters of the same type. `numbers` are variables that start as a constant.
    `arguments` are the function's parameters. `copy` is the method that copies an array.
    """

    twins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    arguments: tuple[str, ...] = ()
    copy: str = "copy"


def context_of(function: ast.FunctionDef, copy: str) -> Context:
    """Return the context of this function's body."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    groups = [
        [p.arg for p in parameters if p.annotation and ast.dump(p.annotation) == annotation]
        for annotation in {ast.dump(p.annotation) for p in parameters if p.annotation}
    ]
    for node in ast.walk(function):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
            groups.append([name.id for name in node.elts if isinstance(name, ast.Name)])
    twins: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for name in group:
            others = [other for other in group if other != name and other != "_"]
            twins[name] = (*twins.get(name, ()), *others)
    return Context(twins, _numbers(function), tuple(p.arg for p in parameters), copy)


def _numbers(function: ast.FunctionDef) -> frozenset[str]:
    starts = [
        (node.targets[0], node.value) for node in ast.walk(function) if isinstance(node, ast.Assign)
    ]
    return frozenset(
        target.id
        for target, value in starts
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant)
    )


def parsed(code: str) -> ast.expr:
    """Return the expression in this code."""
    return ast.parse(code, mode="eval").body


def statement(code: str) -> ast.stmt:
    """Return the statement in this code."""
    return ast.parse(code).body[0]


def attribute_call(node: ast.AST) -> str | None:
    """Return the name of the called method or module function, such as `Send`; or None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return None
