"""Control flow and scopes: loops over arrays, branches, ``stop_gradient``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import ContextError, InvalidArgumentError, TracedValueError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import ArrayLike, DTypeLike, IntegerLike, PyTree, ScalarLike, Tensor
from stratagem._src.execution.conditionals import cond
from stratagem._src.execution.gradient_frame import GradientFrame
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.tensorflow_api.conversion import as_tensor, concrete, integer
from stratagem._src.tensorflow_api.tensor_array import TensorArray

_T = TypeVar("_T")
_Step = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
_VALUE_NEEDED = (
    TracedValueError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

__all__ = [
    "case",
    "control_dependencies",
    "executing_eagerly",
    "foldl",
    "foldr",
    "group",
    "inside_function",
    "map_fn",
    "no_op",
    "scan",
    "stop_gradient",
    "switch_case",
    "vectorized_map",
    "while_loop",
]


def stop_gradient(input: PyTree, name: str | None = None) -> PyTree:
    """Returns the array or structure unchanged, as a constant to gradients.

    JAX equivalent: ``jax.lax.stop_gradient``.

    >>> stop_gradient([1.0, 2.0])
    Array([1., 2.], dtype=float32)
    """
    if isinstance(input, (dict, list, tuple)) and not _is_numbers(input):
        return structures.map_structure(lambda leaf: jax.lax.stop_gradient(as_tensor(leaf)), input)
    return jax.lax.stop_gradient(as_tensor(input))


def map_fn(
    fn: Callable[..., Any],
    elems: PyTree,
    dtype: DTypeLike = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> PyTree:
    """Applies ``fn`` to each element along the first axis, and stacks the results.

    Args:
        fn: A function of one element. For a structure of arrays, it takes a structure of their elements.
        elems: An array, or a structure of arrays of equal length.
        dtype: Ignored, like the other options: results have the dtypes that ``fn`` returns.
        parallel_iterations: Ignored.
        back_prop: Ignored.
        swap_memory: Ignored.
        infer_shape: Ignored.
        name: Ignored.
        fn_output_signature: Ignored.

    ``fn`` is traced once for all elements. Eagerly, it is called for each element if it cannot be traced,
    because it uses variables or needs the values of elements.

    JAX equivalent: ``jax.lax.map``.

    >>> map_fn(lambda x: x * 2, [1, 2, 3])
    Array([2, 4, 6], dtype=int32)
    """
    arrays = _arrays(elems)
    return _traced_or_called(
        lambda: jax.lax.map(fn, arrays),
        lambda: _call_for_each(lambda _, element: (None, fn(element)), None, arrays)[1],
    )


def vectorized_map(
    fn: Callable[..., Any], elems: PyTree, fallback_to_while_loop: bool = True, warn: bool = True
) -> PyTree:
    """Applies ``fn`` to all elements along the first axis at once.

    JAX equivalent: ``jax.vmap``.

    >>> vectorized_map(lambda x: x * 2, [1, 2, 3])
    Array([2, 4, 6], dtype=int32)
    """
    return jax.vmap(fn)(_arrays(elems))


def scan(
    fn: Callable[..., Any],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> PyTree:
    """Applies ``fn`` to its last result and the next element, and stacks all results.

    Args:
        fn: A function of its last result and an element, traced as that of ``map_fn``.
        elems: An array, or a structure of arrays of equal length.
        initializer: The initial result; default: the first element, which is then also the first output.
        parallel_iterations: Ignored.
        back_prop: Ignored.
        swap_memory: Ignored.
        infer_shape: Ignored.
        reverse: Whether to start at the end.
        name: Ignored.

    JAX equivalent: ``jax.lax.scan``.

    >>> scan(lambda total, x: total + x, [1, 2, 3])
    Array([1, 3, 6], dtype=int32)
    """
    first, rest = _initial_and_rest(elems, initializer, reverse)

    def step(carry: PyTree, element: PyTree) -> PyTree:
        result = fn(carry, element)
        return result, result

    _, results = _scan(step, first, rest, reverse)
    if initializer is not None:
        return results
    return jax.tree.map(
        lambda f, r: jnp.concatenate([r, f[None]] if reverse else [f[None], r]), first, results
    )


def foldl(
    fn: Callable[..., Any],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> PyTree:
    """Applies ``fn`` to its last result and the next element, and returns the final result.

    >>> foldl(lambda total, x: total + x, [1, 2, 3])
    Array(6, dtype=int32)
    """
    return _fold(fn, elems, initializer, False)


def foldr(
    fn: Callable[..., Any],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> PyTree:
    """Applies ``fn`` as ``foldl`` does, starting at the end.

    >>> foldr(lambda total, x: total - x, [1, 2, 3])
    Array(0, dtype=int32)
    """
    return _fold(fn, elems, initializer, True)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: PyTree,
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: IntegerLike = None,
    name: str | None = None,
) -> PyTree:
    """Calls ``body`` on the loop variables while ``cond`` of them is true, and returns them.

    Args:
        cond: A function of the loop variables that returns a boolean.
        body: A function of the loop variables that returns new ones with the same shapes and dtypes.
        loop_vars: A list or tuple of arrays or structures.
        shape_invariants: Ignored: shapes cannot change in compiled loops.
        parallel_iterations: Ignored.
        back_prop: Ignored.
        swap_memory: Ignored.
        maximum_iterations: The maximum number of iterations; default: no limit.
        name: Ignored.

    Eagerly, this is a Python loop. In compiled code ``body`` is traced once and must not assign variables.
    There, gradients need ``maximum_iterations``: they keep the values of every iteration, so XLA needs a
    bound.

    JAX equivalent: ``jax.lax.while_loop``.

    >>> while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, 1.0))
    (Array(3, dtype=int32), Array(8., dtype=float32))
    """
    max_iterations = (
        None
        if maximum_iterations is None
        else integer("while_loop", "maximum_iterations", maximum_iterations)
    )
    values = tuple(_arrays(one, in_list=False) for one in loop_vars)

    def next_of(*old: PyTree) -> tuple[PyTree, ...]:
        new = body(*old)
        return tuple(new) if isinstance(new, (list, tuple)) and len(old) != 1 else _one(new)

    if not under_jit():
        done = 0
        while (max_iterations is None or done < max_iterations) and bool(cond(*values)):
            values, done = next_of(*values), done + 1
        return type(loop_vars)(values) if isinstance(loop_vars, list) else values
    if any(isinstance(one, TensorArray) and one.element_shape is None for one in values):
        # XLA loops carry arrays of fixed shapes. An abstract call of the body finds the element shape.
        after = jax.eval_shape(next_of, *values)
        values = tuple(
            old.of_shape(new.element_shape) if isinstance(old, TensorArray) else old
            for old, new in zip(values, after, strict=True)
        )
    if max_iterations is not None and _is_differentiated():
        result = _bounded_loop(cond, next_of, values, max_iterations)
        return list(result) if isinstance(loop_vars, list) else result
    limit = np.iinfo(np.int32).max if max_iterations is None else max_iterations
    _, result = jax.lax.while_loop(
        lambda state: (state[0] < limit) & jnp.asarray(cond(*state[1])),
        lambda state: (state[0] + 1, jax.tree.map(_like, next_of(*state[1]), state[1])),
        (jnp.int32(0), values),
    )
    return list(result) if isinstance(loop_vars, list) else result


def _is_differentiated() -> bool:
    """Returns whether a gradient may be computed through what is traced now."""
    thread = THIS_THREAD.state
    return bool(thread.tapes) or any(isinstance(f, GradientFrame) for f in thread.state_frames)


def _bounded_loop(
    cond: Callable[..., Any],
    next_of: Callable[..., tuple[PyTree, ...]],
    values: tuple[PyTree, ...],
    max_iterations: int,
) -> tuple[PyTree, ...]:
    """Returns the loop variables after ``max_iterations``, which do nothing once ``cond`` is false."""

    def step(old: tuple[PyTree, ...], _: None) -> tuple[tuple[PyTree, ...], None]:
        new = jax.lax.cond(
            jnp.asarray(cond(*old)),
            lambda: jax.tree.map(_like, next_of(*old), old),
            lambda: old,
        )
        return new, None

    result: tuple[PyTree, ...] = jax.lax.scan(step, values, length=max_iterations)[0]
    return result


def switch_case(
    branch_index: ScalarLike, branch_fns: Any, default: Any = None, name: str | None = None
) -> PyTree:
    """Calls the function with this index, or the default, and returns its result.

    Args:
        branch_index: An integer.
        branch_fns: Functions without arguments: a list, pairs of index and function, or a dict.
        default: The function for other indices; default: the last one. All may assign variables.
        name: Ignored.

    >>> switch_case(1, [lambda: as_tensor(10), lambda: as_tensor(20)])
    Array(20, dtype=int32)
    """
    pairs = _indexed(branch_fns)
    otherwise = default if default is not None else pairs[-1][1]
    index = as_tensor(branch_index)
    given = concrete(branch_index)
    if given is not None:
        return dict(pairs).get(int(given), otherwise)()
    result = otherwise
    for number, fn in reversed(pairs):
        result = functools.partial(cond, index == number, fn, result)
    return result()


def case(
    pred_fn_pairs: Any,
    default: Any = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str | None = None,
) -> PyTree:
    """Calls the function of the first true predicate, or the default, and returns its result.

    Functions may assign variables, as in ``tf.cond``. ``exclusive`` checks the predicates that are not
    traced.

    >>> case([(False, lambda: as_tensor(10)), (True, lambda: as_tensor(20))])
    Array(20, dtype=int32)
    """
    pairs = (
        list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, Mapping) else list(pred_fn_pairs)
    )
    values = [concrete(pred) for pred, _ in pairs]
    if exclusive and sum(bool(value) for value in values if value is not None) > 1:
        raise InvalidArgumentError(
            "tf.case with exclusive=True allows one true predicate, got more than one."
        )

    def nothing_is_true() -> Any:
        raise InvalidArgumentError("tf.case needs a true predicate or a default, got neither.")

    if default is None:
        if any(value is None for value in values):
            # Compiled code cannot raise: the last function runs where no other predicate is true.
            result = pairs[-1][1]
            pairs = pairs[:-1]
        else:
            result = nothing_is_true
    else:
        result = default
    for predicate, fn in reversed(pairs):
        result = functools.partial(cond, predicate, fn, result)
    return result()


def executing_eagerly() -> bool:
    """Returns whether operations run immediately instead of being traced for compilation.

    >>> executing_eagerly()
    True
    """
    return not under_jit()


def inside_function() -> bool:
    """Returns whether a function is being traced for compilation.

    >>> inside_function()
    False
    """
    return under_jit()


def no_op(name: str | None = None) -> None:
    """Does nothing.

    >>> no_op()
    """
    return


def group(*inputs: object, **kwargs: Any) -> None:
    """Does nothing: assignments happen in program order.

    >>> group()
    """
    return


def control_dependencies(control_inputs: object) -> contextlib.AbstractContextManager[None]:
    """Does nothing: assignments happen in program order.

    >>> with control_dependencies([]):
    ...     pass
    """
    return contextlib.nullcontext()


def _is_numbers(value: PyTree) -> bool:
    leaves = jax.tree.leaves(value)
    return isinstance(value, (list, tuple)) and all(
        isinstance(x, (bool, int, float)) for x in leaves
    )


def _arrays(value: PyTree, *, in_list: bool = True) -> PyTree:
    """Converts leaves to arrays. A list of numbers is one array."""
    if isinstance(value, (dict, tuple)) or (isinstance(value, list) and not _is_numbers(value)):
        return structures.map_structure(_array, value)
    return _array(value)


def _array(value: PyTree) -> Tensor:
    return value if isinstance(value, TensorArray) else as_tensor(value)


def _one(value: PyTree) -> tuple[PyTree, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) and len(value) == 1 else (value,)


def _like(new: ArrayLike, old: Tensor) -> Tensor:
    return as_tensor(new) if isinstance(new, jax.Array) else as_tensor(new, old.dtype)


def _fold(fn: Callable[..., Any], elems: PyTree, initializer: PyTree, reverse: bool) -> PyTree:
    first, rest = _initial_and_rest(elems, initializer, reverse)
    return _scan(lambda c, x: (fn(c, x), None), first, rest, reverse)[0]


def _scan(step: _Step, first: PyTree, elements: PyTree, reverse: bool) -> tuple[PyTree, PyTree]:
    return _traced_or_called(
        lambda: jax.lax.scan(step, first, elements, reverse=reverse),
        lambda: _call_for_each(step, first, elements, reverse=reverse),
    )


def _traced_or_called(trace: Callable[[], _T], call: Callable[[], _T]) -> _T:
    """Returns the result of ``trace``, or of ``call`` if tracing is impossible and not required."""
    if under_jit():
        return trace()
    try:
        return trace()
    except (ContextError, *_VALUE_NEEDED) as error:
        refused = error
    try:
        return call()
    except _NoElements:
        raise refused from None


class _NoElements(Exception):
    """There are no elements to call a function for."""


def _call_for_each(
    step: _Step, carry: PyTree, elements: PyTree, *, reverse: bool = False
) -> tuple[PyTree, PyTree]:
    """Calls ``step`` for each element as ``jax.lax.scan`` does, without tracing it."""
    count = len(jax.tree.leaves(elements)[0])
    if count == 0:
        raise _NoElements
    order = reversed(range(count)) if reverse else range(count)
    results = []
    for index in order:
        carry, result = step(carry, jax.tree.map(lambda leaf, i=index: leaf[i], elements))
        results.append(result)
    if reverse:
        results.reverse()
    return carry, jax.tree.map(lambda *rows: jnp.stack([as_tensor(row) for row in rows]), *results)


def _initial_and_rest(elems: PyTree, initializer: PyTree, reverse: bool) -> tuple[PyTree, PyTree]:
    """Returns the initial carry of a loop, by default the first element, and the other elements."""
    arrays = _arrays(elems)
    if initializer is not None:
        return _arrays(initializer, in_list=False), arrays
    first = jax.tree.map(lambda x: x[-1] if reverse else x[0], arrays)
    return first, jax.tree.map(lambda x: x[:-1] if reverse else x[1:], arrays)


def _indexed(branch_fns: Any) -> list[tuple[int, Callable[[], Any]]]:
    if isinstance(branch_fns, Mapping):
        return sorted(branch_fns.items())
    pairs = [one if isinstance(one, tuple) else (i, one) for i, one in enumerate(branch_fns)]
    if not pairs:
        raise ValueError("branch_fns of tf.switch_case must have at least one function.")
    return sorted(pairs, key=lambda pair: pair[0])
