"""Compares a function's result with the right one, and reports where they first differ.

A value is wrong unless it is within the tolerance. NaN never is, so it is always wrong.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed, the_only


def equal(
    got: Any,
    right: Any,
    name: str = "the result",
    tolerance: float = 0.0,
    absolute: float | None = None,
) -> Finding | None:
    """Return None if an array or tensor equals `right`, or else a finding with the difference.

    Args:
        got: must have the type, shape, dtype, and values of `right`.
        right: a NumPy array or a torch tensor.
        name: what the learner calls the compared value.
        tolerance: absolute and relative; 0 requires identical numbers.
        absolute: the absolute tolerance, if it differs from `tolerance`.
    """
    if got is None:
        return COMMON.returns_none() if name == "the result" else _of_type(got, right, name)
    if not isinstance(got, np.ndarray if isinstance(right, np.ndarray) else type(right)):
        return _of_type(got, right, name)
    if tuple(got.shape) != tuple(right.shape):
        return COMMON.wrong_shape(name=name, got=tuple(got.shape), right=tuple(right.shape))
    if got.dtype != right.dtype:
        return COMMON.wrong_dtype(name=name, got=got.dtype, right=right.dtype)
    return first_difference(as_numpy(got), as_numpy(right), name, tolerance, absolute)


def has_type(got: Any, kind: Any, right: str, name: str = "the result") -> Finding | None:
    """Return None if `got` has the type `kind` or one of several. `right` describes it in words."""
    if got is None and name == "the result":
        return COMMON.returns_none()
    if isinstance(got, kind):
        return None
    return COMMON.wrong_type(name=name, got=a_type_of(got), right=right)


def a_type_of(value: Any) -> str:
    """Return the name of a value's type with its article, such as "a list" or "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def has_parts(got: Any, parts: str) -> Finding | None:
    """Return None if a function returned as many values as `parts` names, such as "out, lse"."""
    if found := has_type(got, tuple | list, f"a tuple: return `{parts}`"):
        return found
    if len(got) == len(parts.split(", ")):
        return None
    return observed(f"it returns {len(got)} values: return `{parts}`")


def returns_nothing(got: Any, instead: str) -> Finding | None:
    """Return None if `got` is None. `instead` describes what the exercise asks for."""
    if got is None:
        return None
    return COMMON.returns_something(got=a_type_of(got), instead=instead)


def same(got: Any, right: Any, tolerance: float = 0.0, absolute: float | None = None) -> bool:
    """Return whether two arrays or tensors have equal shapes and values; NaN equals nothing."""
    got, right = as_numpy(got), as_numpy(right)
    return got.shape == right.shape and bool(_within(got, right, tolerance, absolute).all())


def instead(
    got: Sequence[Any],
    right: Sequence[Any],
    wrong: Iterable[tuple[Sequence[Any], Finding]],
    alike: Callable[[Any, Any], bool],
) -> Finding | None:
    """Return the first mistake that explains all of `got`.

    Return None if `got` is right, or if no mistake explains all of it.

    Args:
        got: the found values, one for each rank or case.
        right: the right values.
        wrong: the values that each mistake would compute, with its finding, in the order in which
            to try them. A generator computes only the values that are needed.
        alike: returns whether two values agree.
    """

    def are(values: Sequence[Any]) -> bool:
        return all(alike(one, other) for one, other in zip(got, values, strict=True))

    if are(right):
        return None
    return next((finding for values, finding in wrong if are(values)), None)


def explained(
    got: Any,
    right: Any,
    variants: Mapping[str, Any] | Iterable[tuple[str, Any]],
    mistakes: Mistakes,
    name: str = "the result",
    tolerance: float = 0.0,
    absolute: float | None = None,
    *,
    with_name: bool = False,
) -> Finding | None:
    """Compare `got` with `right`, and name the mistake that would compute `got`.

    Args:
        got, right: arrays, tensors, or numbers.
        variants: what each mistake computes, by its key in `mistakes`; pairs if one mistake has
            several variants. A variant that equals `right` for these inputs explains nothing.
        mistakes: the check's mistakes. Their texts must not contain fields such as `{name}`.
        name: what the learner calls the compared value.
        tolerance, absolute: see `equal`.
        with_name: whether the text of a mistake begins with `name`.

    Returns:
        None if `got` is right. Otherwise, the mistake that computes `got`. If no mistake does, or
        several do, the first index at which the values differ, with both values.
    """
    difference = equal(got, right, name, tolerance, absolute)
    if difference is None or not hasattr(got, "shape"):
        return difference
    pairs = variants.items() if isinstance(variants, Mapping) else variants
    keys = (
        key
        for key, value in pairs
        if same(got, value, tolerance, absolute) and not same(value, right, tolerance, absolute)
    )
    found = the_only(mistakes, keys)
    if found and with_name:
        found = replace(found, text=f"{name}: {found.text}")
    return found or difference


def first_difference(
    got: np.ndarray,
    right: np.ndarray,
    name: str,
    tolerance: float,
    absolute: float | None = None,
) -> Finding | None:
    differs = ~_within(got, right, tolerance, absolute)
    wrong = np.argwhere(differs)
    if not len(wrong):
        return None
    no_numbers = np.argwhere(differs & ~_finite(got))  # more informative than a wrong number
    index = tuple(int(i) for i in (no_numbers if len(no_numbers) else wrong)[0])
    at = index[0] if len(index) == 1 else index
    one, other = _number(got[index]), _number(right[index])
    where = f"{name} at index {at}" if index else name
    if len(no_numbers):
        return COMMON.not_a_number(name=where, got=one, right=other)
    if one == other:  # they agree in six digits, so show all digits
        one, other = repr(got[index].item()), repr(right[index].item())
    count = f" ({len(wrong)} of {right.size} differ)" if right.size > 1 else ""
    return observed(f"{where} is {one}, expected {other}{count}{_common_factor(got, right)}")


def equal_states(
    got: Mapping[str, Any], right: Mapping[str, Any], name: str, tolerance: float
) -> Finding | None:
    """Compare tensors by name, like `equal`. `name` is a template such as "gradient of {}"."""
    for key, tensor in right.items():
        if (finding := equal(got.get(key), tensor, name.format(key), tolerance)) is not None:
            return finding
    return None


def same_states(got: Mapping[str, Any], right: Mapping[str, Any], tolerance: float) -> bool:
    """Return whether all tensors in `right` agree with the tensors of the same name in `got`."""
    return not wrong_names(got, right, tolerance)


def wrong_names(
    got: Mapping[str, Any], right: Mapping[str, Any], tolerance: float = 0.0
) -> list[str]:
    """Return the names of tensors that `got` lacks, or that differ from `right`."""
    return [n for n, tensor in right.items() if n not in got or not same(got[n], tensor, tolerance)]


def equal_numbers(
    got: Sequence[float], right: Sequence[float], name: str, tolerance: float
) -> Finding | None:
    """Compare two lists of numbers. `name` is a template such as "loss {}"."""
    if len(got) != len(right):
        return observed(f"{len(got)} numbers, expected {len(right)}: {name.format('…')}")
    for index, (one, other) in enumerate(zip(got, right, strict=True)):
        if not abs(one - other) <= tolerance * max(1.0, abs(other)):
            return observed(f"{name.format(index)} is {_number(one)}, expected {_number(other)}")
    return None


def close(got: float, right: float, tolerance: float) -> bool:
    """Return whether a number is within a relative tolerance of `right`; NaN never is."""
    return abs(got - right) <= tolerance * abs(right)


def as_numpy(value: Any) -> np.ndarray:
    """Return the numbers as an array. A floating-point tensor becomes a float64 array."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _common_factor(got: np.ndarray, right: np.ndarray) -> str:
    """Return a sentence if all values are the right ones times n, 1/n, or -1, and otherwise "".

    The right values must differ from each other, because two single numbers always have a ratio.
    """
    numbers = right[right != 0]
    if got.dtype.kind not in "iuf" or not len(numbers) or numbers.min() == numbers.max():
        return ""
    largest = np.unravel_index(np.abs(right).argmax(), right.shape)
    factor = float(got[largest]) / float(right[largest])
    if -1.5 < factor < -0.5:
        multiple, text = -1.0, "has the wrong sign"
    elif 1.5 < factor < 64.5:
        multiple = float(round(factor))
        text = f"is {multiple:.0f} times the expected one"
    elif 1 / 64.5 < factor < 1 / 1.5:
        multiple = 1 / round(1 / factor)
        text = f"is 1/{round(1 / factor)} of the expected one"
    else:
        return ""
    expected = right * multiple
    close = np.isclose(got, expected, 1e-3, 1e-5 * abs(expected[largest]))
    return f". Each value {text}" if close.all() else ""


def _within(
    got: np.ndarray, right: np.ndarray, tolerance: float, absolute: float | None
) -> np.ndarray:
    if not tolerance:
        return np.asarray(got == right)
    return np.isclose(got, right, tolerance, tolerance if absolute is None else absolute)


def _finite(array: np.ndarray) -> np.ndarray:
    """Return a mask of the finite elements; integers, booleans, and objects are always finite."""
    if array.dtype.kind in "fc":
        return np.isfinite(array)
    return np.ones(array.shape, dtype=bool)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _of_type(got: Any, right: Any, name: str) -> Finding:
    article = {"ndarray": "a NumPy array", "Tensor": "a torch.Tensor"}
    kind = type(right).__name__
    shown = "None" if got is None else a_type_of(got)
    return COMMON.wrong_type(name=name, got=shown, right=article.get(kind, f"a {kind}"))
