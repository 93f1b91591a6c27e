"""A wrong answer to any exercise: the reference that remembers its last result.

If all arguments have the same shapes as in the previous call, it returns that call's result again,
and leaves the same values in its arguments. It communicates like the reference, so only a check
that repeats a case with other values notices it.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI


def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of the function that remembers its last call."""
    last: dict[str, Any] = {}

    @functools.wraps(function)
    def remembers(*arguments: Any, **named: Any) -> Any:
        given = (arguments, named)
        form = _form(given)
        before = [_copied(array) for array in _arrays(given)]
        result = function(*arguments, **named)
        arrays = list(_arrays(given))
        if last.get("form") == form and len(arrays) == len(last["left"]):
            for array, left in zip(arrays, last["left"], strict=True):
                if left is not None:
                    _write(array, left)
            return last["result"]
        changed = zip(before, arrays, strict=False)
        left = [None if _same(one, other) else _copied(other) for one, other in changed]
        left += [_copied(array) for array in arrays[len(before) :]]
        last.update(form=form, left=left, result=_kept(result))
        return result

    return remembers


def _form(value: Any) -> Any:
    """Return a value that is equal for arguments of the same types and shapes."""
    kind = type(value)
    if isinstance(value, MPI.Comm):
        return kind, value.size, value.rank
    if isinstance(value, dict):
        return kind, tuple((key, _form(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return kind, tuple(map(_form, value))
    shapes = tuple((tuple(array.shape), str(array.dtype)) for array in _arrays(value))
    return kind, shapes


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays and tensors in a value, with the parameters of modules and gradients."""
    arrays = list(_values(value))
    yield from (a if isinstance(a, np.ndarray) else a.detach() for a in arrays)
    leaves = (a for a in arrays if not isinstance(a, np.ndarray) and a.is_leaf)
    yield from (leaf.grad.detach() for leaf in leaves if leaf.grad is not None)


def _values(value: Any) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _values(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _values(one)
    elif torch is not None and isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif torch is not None and isinstance(value, torch.Tensor):
        yield value


def _copied(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    return one.shape == other.shape and bool(((one == other) | (one != one)).all())


def _write(array: Any, left: Any) -> None:
    if isinstance(array, np.ndarray):
        array[...] = left
    else:
        array.copy_(left)


def _kept(result: Any) -> Any:
    """Return a result with copies of its arrays and tensors, except for a model's parameters."""
    torch = sys.modules.get("torch")
    if isinstance(result, np.ndarray):
        return result.copy()
    if torch is not None and type(result) is torch.Tensor:
        return result.detach().clone().requires_grad_(result.requires_grad)
    if type(result) in (list, tuple):
        return type(result)(map(_kept, result))
    return {key: _kept(one) for key, one in result.items()} if type(result) is dict else result
