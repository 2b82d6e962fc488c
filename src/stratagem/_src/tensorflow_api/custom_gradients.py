"""``custom_gradient``, ``recompute_grad``, ``grad_pass_through``: functions with custom gradients."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError, VariableError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.execution.gradient_frame import GradientFrame
from stratagem._src.jax_compat.tracing import under_trace
from stratagem._src.tensorflow_api.conversion import as_tensor
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.variable import Variable

__all__ = ["custom_gradient", "grad_pass_through", "recompute_grad"]


def custom_gradient(f: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decorates a function that defines its own gradient.

    Args:
        f: A function of arrays that returns ``(result, grad_fn)``. ``grad_fn`` takes the gradient of each
            result and returns the gradient of each argument. If ``f`` reads trainable variables,
            ``grad_fn`` also takes them as ``variables=`` and returns ``(gradients of arguments, gradients
            of variables)``.

    Differs from TensorFlow: ``f`` runs more than once for each call, and must not assign variables.

    JAX equivalent: ``jax.custom_vjp``.

    >>> double = custom_gradient(lambda x: (x * 2, lambda upstream: upstream * 10))
    >>> jax.grad(double)(1.0)
    Array(10., dtype=float32, weak_type=True)

    With a variable:

    >>> import stratagem as tf
    >>> w = tf.Variable(3.0)
    >>> @tf.custom_gradient
    ... def scaled(x):
    ...     def gradient(upstream, variables):
    ...         return upstream * w, [100 * upstream * x]
    ...     return x * w, gradient
    >>> with tf.GradientTape() as tape:
    ...     y = scaled(tf.constant(2.0))
    >>> float(tape.gradient(y, w))
    200.0
    """
    if f is None:
        return custom_gradient
    made: Callable[..., Any] = f

    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        parent = frames.current_frame()
        arrays = [as_tensor(arg) for arg in args]
        if parent is None and not frames.records() and not under_trace():
            return made(*arrays, **kwargs)[0]
        variables = _variables_read(functools.partial(made, **kwargs), arrays, parent)

        def computed(
            arrays: Sequence[Any], values: Sequence[Any], use: Callable[[Any], Any]
        ) -> Any:
            """Calls the function with these values of the variables, and applies ``use`` to its result."""
            frame = GradientFrame(parent)
            frame.differentiate(variables, values)
            with _without_tapes(), frames.enter(frame) if variables else contextlib.nullcontext():
                result = use(made(*arrays, **kwargs))
            if frame.written:
                raise _no_assignment(frame.written.values())
            return result

        @jax.custom_vjp
        def forward(arrays: list[Any], values: list[Any]) -> Any:
            return computed(arrays, values, lambda made: made[0])

        def keep(arrays: list[Any], values: list[Any]) -> Any:
            return forward(arrays, values), (arrays, values)

        def backward(kept: tuple[list[Any], list[Any]], upstream: PyTree) -> Any:
            arrays, values = kept
            given = upstream if isinstance(upstream, (list, tuple)) else [upstream]

            def differentiate(results: PyTree) -> tuple[Any, Any]:
                _, gradient = results
                if not variables:
                    return gradient(*given), []
                if not _takes_variables(gradient):
                    raise InvalidArgumentError(
                        "The gradient function of tf.custom_gradient must have an argument 'variables' "
                        "if the function reads trainable variables, and this one reads "
                        f"{_names(variables)}. Return (gradients of arguments, gradients of variables) "
                        "from it, or pass the variables' values as arguments."
                    )
                of_arguments, of_variables = gradient(*given, variables=list(variables))
                return of_arguments, of_variables

            return tuple(
                _gradients(found, of)
                for found, of in zip(computed(arrays, values, differentiate), kept, strict=True)
            )

        forward.defvjp(keep, backward)
        return forward(arrays, [variable.read_value() for variable in variables])

    return call


def _gradients(found: PyTree, arrays: Sequence[Any]) -> list[PyTree]:
    """Returns a gradient for each of ``arrays``, zeros in place of ``None``."""
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    if not arrays or (len(found) == 1 and found[0] is None):
        found = [None] * len(arrays)
    if len(found) != len(arrays):
        raise InvalidArgumentError(
            "The gradient function of tf.custom_gradient must return one gradient per argument and per "
            f"variable, got {len(found)} for {len(arrays)}."
        )
    return [
        jax.tree.map(jnp.zeros_like, array)
        if one is None
        else jax.tree.map(lambda g, a: jnp.asarray(g, a.dtype), one, array)
        for one, array in zip(found, arrays, strict=True)
    ]


class _ReadsFrame(GradientFrame):
    """Records which variables are read."""

    def __init__(self, parent: frames.StateFrame | None) -> None:
        super().__init__(parent)
        self.read_here: dict[int, Variable] = {}

    def read(self, variable: Variable) -> Any:
        """Returns the value, and records the variable."""
        self.read_here[id(variable)] = variable
        return super().read(variable)

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows of the value, and records the variable."""
        self.read_here[id(variable)] = variable
        return super().rows(variable, indices)


def _variables_read(
    fn: Callable[..., Any], arrays: Sequence[Any], parent: frames.StateFrame | None
) -> list[Variable]:
    """Returns the variables that a function reads and that need gradients."""
    frame = _ReadsFrame(parent)

    def traced(arrays: Sequence[Any]) -> None:
        frame.open()
        with frames.enter(frame):
            fn(*arrays)

    with _without_tapes() as tapes:
        if under_trace():
            jax.eval_shape(traced, arrays)
        else:
            # Untraced: eager functions may branch on values.
            traced(arrays)
    if frame.written:
        raise _no_assignment(frame.written.values())
    found = [
        variable
        for variable in frame.read_here.values()
        if jnp.issubdtype(variable.dtype, jnp.inexact)
        and (variable.trainable or any(tape.watches(variable) for tape in tapes))
    ]
    remote = [variable for variable in found if isinstance(variable, BaseRemoteVariable)]
    if remote:
        raise UnsupportedError(
            "A function with tf.custom_gradient cannot read variables on parameter servers, and this one "
            f"reads {_names(remote)}. Read them first, and pass the values as arguments."
        )
    return found


@contextlib.contextmanager
def _without_tapes() -> Iterator[list[Any]]:
    """Hides the tapes of this thread: they record the variables where the function is called."""
    thread = THIS_THREAD.state
    tapes, thread.tapes = thread.tapes, []
    try:
        yield tapes
    finally:
        if tapes:
            thread.before_enter()
        thread.tapes = tapes


def _takes_variables(gradient: Callable[..., Any]) -> bool:
    parameters = inspect.signature(gradient).parameters.values()
    return any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters)


def _names(variables: Sequence[Variable]) -> str:
    return ", ".join(repr(variable.name) for variable in variables)


def _no_assignment(variables: Any) -> VariableError:
    return VariableError(
        f"A function with tf.custom_gradient must not assign variables, and this one assigns "
        f"{_names(list(variables))}. Return the value and assign it outside."
    )


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that recomputes its intermediate values for the gradient (rematerialization).

    Differs from TensorFlow: only in compiled functions; eagerly, ``f`` runs unchanged.

    JAX equivalent: ``jax.checkpoint``.

    >>> float(jax.grad(recompute_grad(lambda x: x * x))(3.0))
    6.0
    """
    recomputed = jax.checkpoint(f)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        return recomputed(*args, **kwargs) if under_trace() else f(*args, **kwargs)

    return call


def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the gradient of the identity (a straight-through estimator).

    >>> float(jax.grad(grad_pass_through(lambda x: x * 9))(3.0))
    1.0
    """

    @functools.wraps(f)
    def call(x: ArrayLike) -> Any:
        x = as_tensor(x)
        return x + jax.lax.stop_gradient(as_tensor(f(x)) - x)

    return call
