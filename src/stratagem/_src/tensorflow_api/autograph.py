"""``tf.autograph``: what is left of it where functions are traced and not rewritten."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar, overload

from stratagem._src.core.errors import UnsupportedError

__all__ = ["do_not_convert", "set_loop_options", "set_verbosity", "trace"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def do_not_convert(func: _Function) -> _Function: ...


@overload
def do_not_convert(func: None = None) -> Callable[[_Function], _Function]: ...


def do_not_convert(func: Any = None) -> Any:
    """Returns the function: no function is converted.

    >>> @do_not_convert
    ... def double(x):
    ...     return 2 * x
    >>> double(3)
    6

    Args:
        func: The function; ``None`` returns a decorator.
    """
    return (lambda decorated: decorated) if func is None else func


def set_loop_options(
    parallel_iterations: int | None = None,
    swap_memory: bool | None = None,
    maximum_iterations: int | None = None,
    shape_invariants: Any = None,
) -> None:
    """Has no effect: options of a loop that TensorFlow would build do not change what it computes.

    >>> for i in range(2):
    ...     set_loop_options(parallel_iterations=1)

    Args:
        parallel_iterations: Without effect.
        swap_memory: Without effect.
        maximum_iterations: Must be ``None``, because it would end the loop.
        shape_invariants: Without effect.

    Raises:
        UnsupportedError: If the number of iterations is limited.
    """
    if maximum_iterations is not None:
        raise UnsupportedError(
            "A Python loop cannot be limited by set_loop_options, got "
            f"maximum_iterations={maximum_iterations}. Use tf.while_loop(..., "
            f"maximum_iterations={maximum_iterations}), or leave the loop with break."
        )


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Has no effect: nothing is converted, so there is nothing to log.

    >>> set_verbosity(0)
    """


def trace(*args: Any) -> None:
    """Prints the arguments while a function is traced.

    >>> trace("x", 1)
    x 1
    """
    builtins.print(*args)
