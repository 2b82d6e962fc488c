"""Flags of XLA for one program: those that the user has chosen, and those that its loops need."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Equation, Jaxpr
from stratagem._src.jax_compat.primitives import ALL_GATHER, PSUM, REDUCE_SCATTER, SCAN, WHILE
from stratagem._src.jaxpr.walk import all_equations, inner_jaxprs

__all__ = ["CompilerOptions", "checked_options", "options_for"]

CompilerOptions: TypeAlias = Mapping[str, bool | int | float | str]

# A loop that gathers the weights of its layer waits for them in each turn, unless XLA gathers those of the
# next layer meanwhile; and it waits for sums of gradients, unless XLA adds those of the layer before.
# Double buffering unrolls the loop twice, so that nothing has to be copied for that.
_PIPELINING = {
    PSUM: "xla_gpu_enable_pipelined_all_reduce",
    ALL_GATHER: "xla_gpu_enable_pipelined_all_gather",
    REDUCE_SCATTER: "xla_gpu_enable_pipelined_reduce_scatter",
}
_DOUBLE_BUFFERING = "xla_gpu_enable_while_loop_double_buffering"
_MIN_BYTES = 2**16
"""Of a sum in a loop: for a loss or a metric it is not worth it to unroll the loop."""

_GPUS = ("gpu", "cuda", "rocm")


def checked_options(options: CompilerOptions) -> dict[str, Any]:
    """Returns a copy of compiler options.

    Raises:
        InvalidArgumentError: If they are not names with values.

    >>> checked_options({"xla_gpu_enable_pipelined_all_gather": True})
    {'xla_gpu_enable_pipelined_all_gather': True}
    """
    if not isinstance(options, Mapping) or not all(
        isinstance(name, str) and isinstance(value, (bool, int, float, str))
        for name, value in options.items()
    ):
        raise InvalidArgumentError(
            "compiler_options must map names of XLA's flags to booleans, numbers or strings, got "
            f"{options!r}. For example {{'xla_gpu_enable_pipelined_all_gather': True}}."
        )
    wrong = [name for name in options if name.startswith("-")]
    if wrong:
        raise InvalidArgumentError(
            f"compiler_options are named without leading dashes, got {wrong[0]!r}. Use "
            f"{wrong[0].lstrip('-')!r}."
        )
    return dict(options)


def options_for(
    jaxpr: Jaxpr, platform: str, chosen: CompilerOptions | None, *, pipelined: bool
) -> dict[str, Any] | None:
    """Returns the options of a program; ``None`` without any.

    Args:
        jaxpr: The program.
        platform: The platform that it is compiled for.
        chosen: The options that the user has chosen.
        pipelined: Whether the collectives of its loops should run during the computation of the loops.
    """
    options: dict[str, Any] = {}
    if pipelined and platform in _GPUS:
        in_loops = _collectives_of_loops(jaxpr)
        options = {flag: True for name, flag in _PIPELINING.items() if name in in_loops}
        if options:
            options[_DOUBLE_BUFFERING] = True
        given = os.environ.get("XLA_FLAGS", "")
        options = {name: value for name, value in options.items() if name not in given}
    return {**options, **(chosen or {})} or None


def _collectives_of_loops(jaxpr: Jaxpr) -> set[str]:
    """Returns the names of the collectives in the bodies of loops."""
    return {
        inner.primitive.name
        for eqn in all_equations(jaxpr)
        if eqn.primitive.name in (SCAN, WHILE)
        for body in inner_jaxprs(eqn)
        for inner in all_equations(body)
        if inner.primitive.name in _PIPELINING
        and (inner.primitive.name != PSUM or _num_bytes(inner) >= _MIN_BYTES)
    }


def _num_bytes(eqn: Equation) -> int:
    return sum(math.prod(v.aval.shape) * int(v.aval.dtype.itemsize) for v in eqn.outvars)
