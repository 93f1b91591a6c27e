"""Changes arguments, wrappers, views and copies, dtypes, and slices."""

import ast
from collections.abc import Iterator

from parlab_staff.mutants.operators.kind import Context, NodeOperator, attribute_call, parsed

# Without one of these functions or methods, an expression still has nearly the same meaning.
WRAPPERS = {"reversed", "sorted", "list", "tuple", "float", "int", "len", "sum", "abs", "enumerate"}
METHODS = {
    *("item", "detach", "clone", "copy", "contiguous", "flatten", "ravel", "squeeze", "tolist"),
    *("reshape", "view", "view_as", "to", "float", "double", "backward"),
}
# `np.empty_like(x)` has the dtype of x, but `np.empty(x.shape)` has the library's default.
LIKE = {"empty_like": "empty", "zeros_like": "zeros", "ones_like": "ones"}


def argument_dropped(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Drop one of several arguments, so that its default is used."""
    if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) < 2:
        return
    for number in range(len(node.args)):
        yield _call(node, args=[*node.args[:number], *node.args[number + 1 :]])
    for number in range(len(node.keywords)):
        yield _call(node, keywords=[*node.keywords[:number], *node.keywords[number + 1 :]])


def arguments_swapped(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Swap two neighboring arguments, or the source and the destination."""
    if not isinstance(node, ast.Call):
        return
    for n in range(len(node.args) - 1):
        first, second = node.args[n : n + 2]
        yield _call(node, args=[*node.args[:n], second, first, *node.args[n + 2 :]])
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    if {"dest", "source"} <= named.keys():
        swapped = named | {"dest": named["source"], "source": named["dest"]}
        yield _call(node, keywords=[ast.keyword(name, value) for name, value in swapped.items()])


def unwrapped(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Drop a call such as `reversed`, `.copy()`, `.detach()`, or `.item()`; keep its argument."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Name) and node.func.id in WRAPPERS and node.args:
        yield node.args[0]
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield node.func.value


def copied(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Use a copy instead of a view, so that writes into it are lost."""
    if attribute_call(node) in ("reshape", "view", "view_as", "detach", "split"):
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        owner = ast.Call(ast.Attribute(node.func.value, context.copy, ast.Load()), [], [])
        yield _call(node, func=ast.Attribute(owner, node.func.attr, ast.Load()))
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield ast.Call(ast.Attribute(node, context.copy, ast.Load()), [], [])


def dtype(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Create an array with the library's default dtype or device instead of another array's."""
    name = attribute_call(node)
    if name in LIKE:
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        shape = ast.Attribute(node.args[0], "shape", ast.Load())
        yield ast.Call(ast.Attribute(node.func.value, LIKE[name], ast.Load()), [shape], [])
    elif name in ("new_zeros", "new_empty", "new_ones"):
        assert isinstance(node, ast.Call)
        yield ast.Call(parsed(f"torch.{name.removeprefix('new_')}"), node.args, node.keywords)


def sliced(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Drop the start, end, or step of a slice; or use the whole array instead of a part."""
    if isinstance(node, ast.Slice):
        for name in ("lower", "upper", "step"):
            if getattr(node, name) is not None:
                bounds = {n: getattr(node, n) for n in ("lower", "upper", "step")}
                yield ast.Slice(**(bounds | {name: None}))
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield node.value


def mean_or_sum(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Sum the loss over the samples instead of taking the mean."""
    if attribute_call(node) == "cross_entropy":
        assert isinstance(node, ast.Call)
        total = ast.keyword("reduction", ast.Constant("sum"))
        yield _call(node, keywords=[*node.keywords, total])


def global_generator(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Use the library's global random generator instead of a new one."""
    if attribute_call(node) == "Generator":
        yield ast.Name("torch", ast.Load())  # torch.manual_seed returns the global generator


def _call(node: ast.Call, **changed) -> ast.Call:
    fields = {"func": node.func, "args": node.args, "keywords": node.keywords} | changed
    return ast.Call(**fields)


NODE_OPERATORS: list[NodeOperator] = [
    argument_dropped,
    arguments_swapped,
    unwrapped,
    copied,
    dtype,
    sliced,
    mean_or_sum,
    global_generator,
]
