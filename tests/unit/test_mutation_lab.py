"""Exercises for their mutants: each hidden check runs by itself."""

import ast
import builtins

import pytest

from parlab_staff.mutants.target import Target, targets


def bound(code: str) -> set[str]:
    """Return all names that the code binds."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.split(".")[0])
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.arg(arg=name):
                names.add(name)
    return names


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.key)
def test_a_hidden_check_needs_nothing_from_other_hidden_checks(target: Target) -> None:
    known = bound("\n".join([target.setup, target.reference, target.hidden]))
    read = {node.id for node in ast.walk(ast.parse(target.hidden)) if isinstance(node, ast.Name)}
    assert read - known - set(dir(builtins)) == set()
