"""Computes products with matrices whose elements are all equal as sums, which XLA miscompiles otherwise.

In the body of a loop or conditional XLA's CPU compiler joins a matrix product or convolution with the
reduction of its result, and with what makes its second operand. If that is a broadcast scalar, as in
``jnp.sum(x @ jnp.ones((n, n)))`` in a ``lax.scan``, the program reads memory that it never wrote (JAX 0.10
to 0.12). A product with a matrix of equal elements is a sum, which needs no matrix:
``x @ full((n, m), s)`` has the columns ``sum(x * s, 1)``. An optimization barrier does not help, since the
compiler removes it first. ``tests/unit/jaxpr/test_uniform_operands.py`` says whether XLA still does it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.types import Equation, Jaxpr, Tensor
from stratagem._src.jax_compat.primitives import (
    BITCAST,
    COND,
    CONVOLUTION,
    DOT_GENERAL,
    ELEMENTWISE,
    PICKS_ELEMENTS,
    SCAN,
    SHARD_MAP,
    WHILE,
    called_jaxpr,
    scan_counts,
)
from stratagem._src.jax_compat.tracing import is_tracer, jax_core
from stratagem._src.jaxpr.equations_of import equations_of, is_sharded
from stratagem._src.jaxpr.walk import map_inner_jaxprs

__all__ = ["sum_uniform_products"]

_KEEP_EQUALITY = frozenset({*ELEMENTWISE, *PICKS_ELEMENTS}) - {BITCAST}
"""Of operands that each have equal elements these make results that do."""

_MAX_COMPARED = 2**20
"""Elements of a constant that are compared."""


def sum_uniform_products(jaxpr: Jaxpr) -> Jaxpr:
    """Returns ``jaxpr`` with sums instead of products with operands whose elements are all equal.

    Inputs and outputs stay the same variables. Bodies of loops, conditionals, calls and ``shard_map`` are
    rewritten too.
    """
    return _rewrite(jaxpr, [False] * len(jaxpr.invars))[0]


def _rewrite(
    jaxpr: Jaxpr, inputs: Sequence[bool], consts: Sequence[Any] = ()
) -> tuple[Jaxpr, list[bool]]:
    """Returns the rewritten jaxpr, and which of its outputs are uniform: all elements are equal.

    Args:
        jaxpr: The jaxpr.
        inputs: Which of its inputs are uniform.
        consts: The values of its constants.
    """
    uniform = {id(var) for var, flag in zip(jaxpr.invars, inputs, strict=True) if flag}
    for var, const in zip(jaxpr.constvars, consts, strict=False):  # a pass may not know the values
        if _has_equal_elements(const):
            uniform.add(id(var))

    def is_uniform(atom: Any) -> bool:
        return atom.aval.size == 1 or id(atom) in uniform

    eqns: list[Equation] = []
    for eqn in jaxpr.eqns:
        operands = list(map(is_uniform, eqn.invars))
        eqn, results = _rewrite_bodies(eqn, operands)
        if eqn.primitive.name in _KEEP_EQUALITY:
            results = [all(operands)] * len(eqn.outvars)
        uniform |= {id(var) for var, flag in zip(eqn.outvars, results, strict=True) if flag}
        summed = _summed(eqn, operands)
        eqns.extend([eqn] if summed is None else equations_of(summed, eqn))
    outputs = list(map(is_uniform, jaxpr.outvars))
    is_same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if is_same else jaxpr.replace(eqns=eqns), outputs


def _rewrite_bodies(eqn: Equation, operands: Sequence[bool]) -> tuple[Equation, list[bool]]:
    """Returns an equation with rewritten jaxprs in it, and which of its results are uniform."""
    results = [False] * len(eqn.outvars)
    is_call = called_jaxpr(eqn) is not None

    def rewrite_body(name: str, position: int | None, body: Jaxpr) -> Jaxpr:
        jaxpr, outputs = _rewrite(
            body.jaxpr, _inputs_of_body(eqn, operands, name, body), body.consts
        )
        if is_call:
            results[:] = outputs
        return body if jaxpr is body.jaxpr else jax_core().ClosedJaxpr(jaxpr, body.consts)

    return map_inner_jaxprs(eqn, rewrite_body), results


def _inputs_of_body(eqn: Equation, operands: Sequence[bool], param: str, body: Jaxpr) -> list[bool]:
    """Returns which inputs of a jaxpr in an equation are uniform.

    XLA moves what does not change in a loop into its body: constants, and state that is only passed on.
    """
    name, params = eqn.primitive.name, eqn.params
    given = list(operands)
    if name == SCAN:
        return _without_changed_state(given, *scan_counts(params), body)
    if name == WHILE:
        first, second = params["cond_nconsts"], params["body_nconsts"]
        state = given[first + second :]
        if param == "cond_jaxpr":
            return [*given[:first], *[False] * len(state)]
        given = [*given[first : first + second], *state]
        return _without_changed_state(given, second, len(state), body)
    if name == COND:
        return given[1:]
    if name == SHARD_MAP or called_jaxpr(eqn) is not None:
        return given
    return [False] * len(body.jaxpr.invars)


def _without_changed_state(
    inputs: list[bool], num_consts: int, num_carry: int, body: Jaxpr
) -> list[bool]:
    jaxpr = body.jaxpr
    for position in range(num_carry):
        if jaxpr.outvars[position] is not jaxpr.invars[num_consts + position]:
            inputs[num_consts + position] = False
    return inputs


def _has_equal_elements(value: Any) -> bool:
    if value is None or is_tracer(value):  # of a captured value that is not known, since JAX 0.11
        return False
    if not 1 < value.size <= _MAX_COMPARED or not np.issubdtype(value.dtype, np.number):
        return False
    elements = np.asarray(value).reshape(-1)
    return bool((elements == elements[0]).all())


def _summed(eqn: Equation, uniform: Sequence[bool]) -> Callable[..., Any] | None:
    """Returns a function that computes a product as a sum; ``None`` if the equation stays as it is."""
    if any(atom.aval.size <= 1 for atom in eqn.invars) or is_sharded(eqn):
        return None
    if eqn.primitive.name == DOT_GENERAL and any(uniform):
        return functools.partial(_summed_dot, eqn, uniform.index(True))
    if eqn.primitive.name == CONVOLUTION and uniform[1]:
        groups = (eqn.params["feature_group_count"], eqn.params["batch_group_count"])
        return functools.partial(_summed_convolution, eqn) if groups == (1, 1) else None
    return None


def _element(array: Tensor) -> Any:
    """Returns the value that all elements have."""
    first = jax.lax.slice(array, [0] * array.ndim, [1] * array.ndim)
    return jax.lax.squeeze(first, range(array.ndim))


def _products(eqn: Equation, array: Tensor, uniform: Tensor) -> Any:
    """Returns the products of an array's elements with the value of a uniform one, to be added."""
    dtype = eqn.outvars[0].aval.dtype
    if dtype in ("float16", "bfloat16"):
        dtype = np.dtype("float32")  # as XLA adds the products of a matrix product
    return array.astype(dtype) * _element(uniform).astype(dtype)


def _summed_dot(eqn: Equation, position: int, *operands: Tensor) -> Any:
    other, result = 1 - position, eqn.outvars[0].aval
    contracted, batch = (pair[other] for pair in eqn.params["dimension_numbers"])
    products = _products(eqn, operands[other], operands[position])
    kept = [dim for dim in range(products.ndim) if dim not in contracted]
    total = jax.lax.reduce_sum(products, tuple(contracted))
    # The result has batch dimensions, then the free ones of the first operand, then those of the second.
    free = [dim for dim in kept if dim not in batch]
    total = jax.lax.transpose(total, [kept.index(dim) for dim in (*batch, *free)])
    start = len(batch) if other == 0 else result.ndim - len(free)
    dims = (*range(len(batch)), *range(start, start + len(free)))
    return jax.lax.broadcast_in_dim(total.astype(result.dtype), result.shape, dims)


def _summed_convolution(eqn: Equation, image: Tensor, kernel: Tensor) -> Any:
    params, result = eqn.params, eqn.outvars[0].aval
    numbers = params["dimension_numbers"]
    products = _products(eqn, image, kernel)
    total = jax.lax.reduce_sum(products, (numbers.lhs_spec[1],))
    # Now the batch and the spatial dimensions, in the order of the image.
    order = sorted([numbers.lhs_spec[0], *numbers.lhs_spec[2:]])
    total = jax.lax.transpose(
        total, [order.index(dim) for dim in (numbers.lhs_spec[0], *numbers.lhs_spec[2:])]
    )
    window = [kernel.shape[dim] for dim in numbers.rhs_spec[2:]]
    total = jax.lax.reduce_window(
        total,
        np.zeros((), total.dtype),
        jax.lax.add,
        (1, *window),
        (1, *params["window_strides"]),
        ((0, 0), *params["padding"]),
        (1, *params["lhs_dilation"]),
        (1, *params["rhs_dilation"]),
    )
    dims = (numbers.out_spec[0], *numbers.out_spec[2:])
    # `broadcast_in_dim` takes increasing dimensions.
    total = jax.lax.transpose(total, np.argsort(dims).tolist())
    return jax.lax.broadcast_in_dim(total.astype(result.dtype), result.shape, sorted(dims))
