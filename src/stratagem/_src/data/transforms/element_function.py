"""``ElementFunction``: a user function of one element, vectorised over batches where possible.

A function is called with NumPy arrays. If JAX can trace it, a batch runs as one ``jit(vmap(fn))`` on the
host, provided that all operations are bit-exact either way and the results on the first batch are
identical to calling the function per element.

JAX equivalent: ``jax.jit(jax.vmap(fn))``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import Element, ElementSpec, Leaf, PyTree, Tensor
from stratagem._src.data.conversion import owned_results, to_element, to_leaf
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.plan.rows import num_rows, row, slice_rows, stack_elements
from stratagem._src.data.structure import flatten, map_structure, pack_like, same_structure
from stratagem._src.data.tensor_spec import STRING, TensorSpec
from stratagem._src.data.transforms.bit_exact_ops import exact_compiler_options
from stratagem._src.data.transforms.pure_trace import trace_if_pure
from stratagem._src.jax_compat.local_settings import with_setting
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler

__all__ = ["ElementFunction", "call_with"]

Result = TypeVar("Result")


def call_with(fn: Callable[..., Any], element: Element) -> Any:
    """Calls ``fn`` as tf.data does: the components of a tuple are separate arguments."""
    if isinstance(element, tuple) and not hasattr(element, "_fields"):
        return fn(*element)
    return fn(element)


class _Traced(NamedTuple):
    """The result of tracing a function: the spec of its output, and compiler options that keep its bits.

    ``compilers`` is empty if no options do; then the function is called per element.
    """

    spec: Any
    compilers: list[dict[str, str]]


class ElementFunction:
    """A function from element to element.

    Args:
        fn: The user's function.
        role: The name of the parameter, for messages.
    """

    def __init__(self, fn: Callable[..., Any], role: str = "map_func") -> None:
        if not callable(fn):
            raise InvalidArgumentError(f"{role} must be callable, got {fn!r}.")
        self._fn = fn
        self._role = role
        self._traced: _Traced | None = None
        self._tried_tracing = False
        self._compiled: _Compiled | None = None
        self._checked = False

    def __reduce__(self) -> Any:
        # The compiled program belongs to this process.
        return type(self), (self._fn, self._role)

    def traced_spec(self, element_spec: ElementSpec) -> Any | None:
        """Returns the output spec, found by tracing, or ``None`` if the function cannot be traced.

        An impure function, whose result depends on more than its argument, cannot.
        """
        if not self._tried_tracing:
            self._traced = _trace(self._fn, element_spec)
            self._tried_tracing = True
        return None if self._traced is None else self._traced.spec

    def traceable(self, element_spec: ElementSpec) -> bool:
        """Returns whether the function can be traced."""
        return self.traced_spec(element_spec) is not None

    def __call__(self, element: Element) -> Any:
        """Calls the function on one element."""
        result = to_element(_with_wide_types(flatten(element), lambda: self._call(element)))
        if result is None:
            raise _returned_none_error(self._fn, self._role)
        return result

    def _call(self, element: Element) -> Any:
        thread = THIS_THREAD.state
        outer, thread.in_element_function = thread.in_element_function, True
        try:
            return owned_results.take(lambda: call_with(self._fn, element), element)
        finally:
            thread.in_element_function = outer

    def rows(self, rows: PyTree) -> Any:
        """Calls the function on each row and returns the results as rows."""
        if not self._checked:
            return self._first_rows(rows)
        if self._compiled is None:
            return self._one_by_one(rows)
        return self._compiled(rows)

    def _one_by_one(self, rows: PyTree) -> Any:
        return stack_elements([self(row(rows, i)) for i in range(num_rows(rows))])

    def _first_rows(self, rows: PyTree) -> Any:
        """Computes the first batch per element, and decides whether later ones run compiled."""
        self.traced_spec(map_structure(lambda leaf: TensorSpec.of(leaf).row(), rows))
        if self._traced is None or not self._traced.compilers:
            self._checked = True
            return self._one_by_one(rows)
        raw = _with_wide_types(
            flatten(rows), lambda: [self._call(row(rows, i)) for i in range(num_rows(rows))]
        )
        expected = stack_elements([to_element(element) for element in raw])
        # The reference of a function that returns JAX arrays is the jitted function per element, that of
        # any other function its plain result.
        uses_jax = any(_is_jax_array(leaf) for leaf in flatten(raw[0]))
        wide = _has_wide_type(flatten(rows)) or not uses_jax
        for compiler in self._traced.compilers:
            try:
                compiled = _Compiled(self._fn, compiler, wide, rows)
                reference = compiled.one_by_one(rows) if uses_jax else expected
                if _identical(compiled(rows), reference):
                    self._compiled, expected = compiled, reference
                    break
            except Exception as error:
                if is_raised_by_signal_handler(error):
                    raise
        self._checked = True
        return map_structure(_read_only, expected)


class _Compiled:
    """``jit(vmap(fn))`` on the host, padded to few different batch sizes to avoid recompilation."""

    def __init__(
        self, fn: Callable[..., Any], compiler: dict[str, str], wide: bool, like: PyTree
    ) -> None:
        import jax

        from stratagem._src.jax_compat.host_device import host_device

        self._nest: Any = None
        nest = map_structure(lambda _: 0, like)

        def leaves(*arrays: Tensor) -> list[Any]:
            result = map_structure(
                lambda leaf: leaf if isinstance(leaf, jax.Array) else to_leaf(leaf),
                call_with(fn, pack_like(nest, list(arrays))),
            )
            self._nest = map_structure(lambda _: 0, result)
            return flatten(result)

        self._jax = jax
        self._wide = wide
        self._device = host_device()
        self._one = jax.jit(leaves, compiler_options=compiler)
        self._many = jax.jit(jax.vmap(leaves), compiler_options=compiler)
        self._sizes: list[int] = []

    def __call__(self, rows: PyTree) -> Any:
        count = num_rows(rows)
        size = next((size for size in self._sizes if count <= size <= 4 * count), None)
        if size is None:
            size = count
            self._sizes = sorted([*self._sizes, size])
        if size > count:
            rows = map_structure(lambda leaf: _padded(leaf, size), rows)
        result = self._run(self._many, rows)
        return slice_rows(result, 0, count) if size > count else result

    def one_by_one(self, rows: PyTree) -> Any:
        return stack_elements(
            [
                map_structure(lambda leaf: leaf[()], self._run(self._one, row(rows, i)))
                for i in range(num_rows(rows))
            ]
        )

    def _run(self, function: Callable[..., Any], element: Element) -> Any:
        jax = self._jax

        def run() -> list[Any]:
            return [np.asarray(array) for array in function(*flatten(element))]

        arrays = with_setting(
            jax.enable_x64,
            self._wide,
            lambda: with_setting(jax.default_device, self._device, run),
        )
        return pack_like(self._nest, arrays)


def _returned_none_error(fn: Callable[..., Any], role: str) -> InvalidArgumentError:
    name = getattr(fn, "__qualname__", repr(fn))
    return InvalidArgumentError(
        f"{role} must return an array or a nest of arrays, but {name} returned None. "
        "None is allowed next to arrays, as in (x, None)."
    )


def _read_only(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Makes the first batch read-only, like the later ones, whose memory belongs to JAX."""
    leaf.setflags(write=False)
    return leaf


def _padded(leaf: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    filling = np.broadcast_to(leaf[:1], (size - len(leaf), *leaf.shape[1:]))
    return np.concatenate([leaf, filling])


def _identical(a: PyTree, b: PyTree) -> bool:
    return same_structure(a, b) and all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
        for x, y in zip(flatten(a), flatten(b), strict=True)
    )


def _trace(fn: Callable[..., Any], element_spec: ElementSpec) -> _Traced | None:
    specs = flatten(element_spec)
    if any(isinstance(spec, DatasetSpec) for spec in specs) or any(
        spec.dtype == STRING or not spec.shape.is_fully_defined() for spec in specs
    ):
        return None
    import jax

    nest: Any = None

    def leaves_of(*leaves: Tensor) -> list[Any]:
        nonlocal nest
        result = map_structure(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else to_leaf(leaf),
            call_with(fn, pack_like(element_spec, list(leaves))),
        )
        nest = map_structure(TensorSpec.of, result)
        if nest is None:
            raise TypeError
        return flatten(result)

    def trace() -> Any:
        with (
            jax.checking_leaks()
        ):  # left entered by an interrupt, it costs time but changes no result
            return jax.make_jaxpr(leaves_of)(*shapes)

    make_shape: Any = jax.ShapeDtypeStruct
    shapes = [make_shape(tuple(spec.shape), spec.dtype) for spec in specs]
    try:
        traced = with_setting(jax.enable_x64, True, lambda: trace_if_pure(trace))
    except Exception as error:
        if is_raised_by_signal_handler(error):
            raise
        return None
    if traced is None:
        return None
    return _Traced(nest, exact_compiler_options(traced.jaxpr))


def _is_jax_array(value: Leaf) -> bool:
    return "jax" in sys.modules and isinstance(value, sys.modules["jax"].Array)


def _has_wide_type(leaves: list[Any]) -> bool:
    return any(getattr(leaf, "dtype", STRING) in _WIDE for leaf in leaves)


_WIDE = (np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.float64), np.dtype(np.complex128))


def _with_wide_types(leaves: list[Any], call: Callable[[], Result]) -> Result:
    """Calls with 64-bit types in JAX, if a function is called with 64-bit arguments, as in tf.data."""
    if "jax" not in sys.modules or not _has_wide_type(leaves):
        return call()
    return with_setting(sys.modules["jax"].enable_x64, True, call)
