"""Mutants of an exercise: its reference, each with one small change that may be a mistake.

    for mutant in mutants_of(exercise_of("ring_shift").cell):
        print(mutant.operator, mutant.change)

Only lines between the solution's markers are changed, because learners are given the rest.
"""

import ast
import difflib
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parlab.runtime.notebook import Cell
from parlab.runtime.source_code import names_in
from parlab_staff.course.solution_regions import find_regions
from parlab_staff.mutants.operators import BLOCK_OPERATORS, NODE_OPERATORS
from parlab_staff.mutants.operators.kind import Context, Statements, context_of

BLOCKS = ("body", "orelse", "finalbody")
# Annotations have no effect when the code runs, and decorators are left as they are.
NOT_CHANGED = ("annotation", "returns", "decorator_list")

Path = tuple[tuple[str, int | None], ...]  # fields and indices that lead from the tree to a node


@dataclass(frozen=True)
class Mutant:
    """One change of a reference. `exercise`, `change`, and `occurrence` identify it.

    `operator` is the kind of change. `change` has the removed lines (`- …`) and the added lines
    (`+ …`). `occurrence` numbers the mutants with the same change from 1. `code` is the whole cell.
    """

    exercise: str
    operator: str
    change: str
    occurrence: int
    code: str

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.exercise, self.change, self.occurrence


def mutants_of(cell: Cell) -> list[Mutant]:
    """Return all mutants of an exercise's cell, in the order of its lines, without duplicates."""
    tree = ast.parse(cell.code)
    reference = ast.unparse(tree)
    local = _locals(tree)
    programs = {_program(reference)}
    occurrences: Counter[str] = Counter()
    mutants = []
    for operator, changed in _changed(tree, _solution_lines(cell)):
        try:
            code = ast.unparse(ast.fix_missing_locations(changed))
            program = _program(code)
        except (SyntaxError, ValueError):  # such as a `continue` outside of a loop
            continue
        if program in programs or _has_unbound(changed, local):
            continue
        programs.add(program)
        change = _difference(reference, code)
        occurrences[change] += 1
        mutants.append(Mutant(cell.key or "", operator, change, occurrences[change], code))
    return mutants


def _solution_lines(cell: Cell) -> set[int]:
    """Return the numbers, from 1, of the lines between the markers."""
    regions, _ = find_regions(cell.code.split("\n"))
    return {line for region in regions for line in range(region.begin + 2, region.end + 1)}


def _changed(tree: ast.Module, lines: set[int]) -> Iterator[tuple[str, ast.Module]]:
    """Yield every tree with one change, and the name of the operator that made it."""
    is_torch = any(isinstance(n, ast.Name) and n.id == "torch" for n in ast.walk(tree))
    start = Context(copy="clone" if is_torch else "copy")
    for path, node, context in _nodes(tree, (), start):
        if getattr(node, "lineno", 0) in lines or _inside(node, lines):
            for operate in NODE_OPERATORS:
                for replacement in operate(node, context):
                    yield operate.__name__, _replaced(tree, path, replacement)
        for field in BLOCKS:
            block = getattr(node, field, None)
            for n in _within(block, lines):
                for operate_block in BLOCK_OPERATORS:
                    for replacement in operate_block(block, n, context):
                        if _untouched(block, replacement, lines):
                            place = (*path, (field, None))
                            yield operate_block.__name__, _replaced(tree, place, replacement)


def _inside(node: ast.AST, lines: set[int]) -> bool:
    """Return True if a node without a line number, such as a comprehension, is in the solution."""
    if hasattr(node, "lineno") or isinstance(node, ast.expr_context | ast.operator | ast.cmpop):
        return False
    children = [child for child in ast.iter_child_nodes(node) if hasattr(child, "lineno")]
    return bool(children) and all(child.lineno in lines for child in children)


def _within(block: object, lines: set[int]) -> list[int]:
    if not isinstance(block, list):
        return []
    return [
        n for n, node in enumerate(block) if isinstance(node, ast.stmt) and node.lineno in lines
    ]


def _untouched(block: Statements, replacement: Statements, lines: set[int]) -> bool:
    """Return True if all statements outside of the solution are unchanged and in order."""
    given = [node for node in block if node.lineno not in lines]
    return [node for node in replacement if any(node is g for g in given)] == given


def _nodes(node: ast.AST, path: Path, context: Context) -> Iterator[tuple[Path, ast.AST, Context]]:
    if isinstance(node, ast.FunctionDef):
        context = context_of(node, context.copy)
    yield path, node, context
    for field, value in ast.iter_fields(node):
        if field in NOT_CHANGED:
            continue
        if isinstance(value, ast.AST):
            yield from _nodes(value, (*path, (field, None)), context)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield from _nodes(one, (*path, (field, index)), context)


def _replaced(tree: ast.Module, path: Path, replacement: ast.AST | Statements) -> ast.Module:
    """Return a copy of the tree with `replacement` at this path: a node, or a whole block."""
    tree = _copied(tree)
    *way, (field, index) = path
    parent: ast.AST = tree
    for name, number in way:
        parent = getattr(parent, name) if number is None else getattr(parent, name)[number]
    replacement = _copied(replacement)
    if index is None:
        setattr(parent, field, replacement)
    elif isinstance(replacement, list):
        getattr(parent, field)[index : index + 1] = replacement
    else:
        getattr(parent, field)[index] = replacement
    return tree


def _copied(part: Any) -> Any:
    """Return a copy of a syntax tree, or of a list of them.

    `copy.deepcopy` would copy all attributes of a node. In a process, there is only one object
    `ast.Load()`, for example, and IPython attaches cells to it when it shows their tracebacks.
    """
    if isinstance(part, list):
        return [_copied(one) for one in part]
    if not isinstance(part, ast.AST):
        return part
    names = [name for name in (*part._fields, *part._attributes) if hasattr(part, name)]
    return type(part)(**{name: _copied(getattr(part, name)) for name in names})


# Which mutants are worth trying


def _program(code: str) -> tuple:
    """Return the compiled code without line numbers, which is equal for equal programs."""
    return _instructions(compile(code, "", "exec"))


def _instructions(code: types.CodeType) -> tuple:
    constants = tuple(
        _instructions(one) if isinstance(one, types.CodeType) else (type(one), repr(one))
        for one in code.co_consts
    )
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _locals(tree: ast.Module) -> dict[str, set[str]]:
    """Return the names that functions bind, by the function's name."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, set()).update(names_in(node, ast.Store))
    return found


def _has_unbound(tree: ast.Module, local: dict[str, set[str]]) -> bool:
    """Return True if a function certainly reads a local variable before it has a value.

    Learners do not submit such functions, because they fail at once.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(_reads_unbound(function, local[function.name]) for function in functions)


def _reads_unbound(function: ast.FunctionDef, local: set[str]) -> bool:
    arguments = function.args
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    bound = {parameter.arg for parameter in parameters}
    if arguments.vararg:
        bound.add(arguments.vararg.arg)
    for statement in function.body:
        makes = names_in(statement, ast.Store)
        # A loop or a comprehension may read a name after binding it. An assignment reads first.
        plain = isinstance(statement, ast.Assign | ast.AugAssign) and not any(
            isinstance(node, ast.comprehension) for node in ast.walk(statement)
        )
        if (names_in(statement, ast.Load) & local) - bound - (set() if plain else makes):
            return True
        bound |= makes
    return False


def _difference(before: str, after: str) -> str:
    """Return the removed and the added lines, without the indentation that they share.

    If a line is only removed, added, or moved, also return the line before it, to show the place.
    """
    old, new = before.splitlines(), after.splitlines()
    parts = difflib.SequenceMatcher(None, old, new, False).get_opcodes()
    changed = [n for n, part in enumerate(parts) if part[0] != "equal"]
    lines = []
    for n in range(changed[0], changed[-1] + 1):
        _, i, j, k, m = parts[n]
        if parts[n][0] == "equal":
            lines += [(" ", line) for line in old[i:j]]
        else:
            lines += [("-", line) for line in old[i:j]] + [("+", line) for line in new[k:m]]
    if any(parts[n][0] != "replace" for n in changed):
        lines.insert(0, (" ", old[parts[changed[0]][1] - 1]))
    texts = textwrap.dedent("\n".join(text for _, text in lines)).splitlines()
    return "\n".join(f"{sign} {text}" for (sign, _), text in zip(lines, texts, strict=True))
