"""Changes numbers, comparisons, conditions, arithmetic, and names."""

import ast
from collections.abc import Iterator

from parlab_staff.mutants.operators.kind import Context, NodeOperator

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
# Names and attributes that are easily confused.
LOOK_ALIKE = {
    "rank": ("size",),
    "size": ("rank",),
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "sum": ("max",),
    "median": ("mean", "median_high", "min"),
    "perf_counter": ("process_time",),
    "zeros_like": ("ones_like", "empty_like"),
    "zeros": ("ones",),
    "new_zeros": ("new_ones",),
    "zero_": ("detach_",),
    "numel": ("dim",),
    "element_size": ("numel",),
    "parameters": ("buffers",),
    "buffers": ("parameters",),
    "is_contiguous": ("is_pinned",),
}


def constant(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Add 1 to a number or subtract 1, or replace True with False."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    elif isinstance(node.value, float):
        yield ast.Constant(node.value + 1)


def comparison(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace a comparison, such as < with ≤."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARISONS[type(node.ops[0])]
        yield ast.Compare(node.left, [other()], node.comparators)


def condition(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Negate a condition, or make it always true or always false."""
    if isinstance(node, ast.If | ast.IfExp):
        fields = {name: value for name, value in ast.iter_fields(node) if name != "test"}
        for test in (ast.UnaryOp(ast.Not(), node.test), ast.Constant(True), ast.Constant(False)):
            yield type(node)(test=test, **fields)
    elif isinstance(node, ast.While):
        yield ast.While(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        yield ast.If(node.test, node.body, node.orelse)
    elif isinstance(node, ast.comprehension):
        for number, test in enumerate(node.ifs):
            others = [*node.ifs[:number], *node.ifs[number + 1 :]]
            yield ast.comprehension(node.target, node.iter, others, node.is_async)
            negated = [*others, ast.UnaryOp(ast.Not(), test)]
            yield ast.comprehension(node.target, node.iter, negated, node.is_async)


def logic(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace `and` with `or`, or drop a part of a condition, a `not`, or a minus sign."""
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for number in range(len(node.values)):
            others = [*node.values[:number], *node.values[number + 1 :]]
            yield ast.BoolOp(node.op, others) if len(others) > 1 else others[0]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def arithmetic(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace an operation on two numbers, or drop one of the numbers."""
    if isinstance(node, ast.BinOp):
        if other := ARITHMETIC.get(type(node.op)):
            yield ast.BinOp(node.left, other(), node.right)
        yield node.left
        yield node.right


def other_name(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Replace a name with a name that is easily confused with it, such as `right` with `left`."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        names = context.twins.get(node.id, ())
        # A variable of the function is not a builtin, even if it has the same name.
        known = () if node.id in context.twins else LOOK_ALIKE.get(node.id, ())
        for name in [*names, *(n for n in known if n in ("min", "max", "any", "all"))]:
            yield ast.Name(name, ast.Load())
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for name in LOOK_ALIKE.get(node.attr, ()):
            yield ast.Attribute(node.value, name, ast.Load())


NODE_OPERATORS: list[NodeOperator] = [
    constant,
    comparison,
    condition,
    logic,
    arithmetic,
    other_name,
]
