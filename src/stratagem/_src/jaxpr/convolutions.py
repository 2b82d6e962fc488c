"""Writes convolutions in the forms that XLA's CPU compiler has fast code for.

XLA's library for CPUs computes convolutions whose channels are the last dimension. Of all others:

* In the bodies of loops and conditionals XLA leaves them as they are, and computes them element by
  element: the gradients of a small convolution take 50 to 100 times as long there. So they are transposed
  here. Elsewhere XLA does the same itself.
* The gradient of a kernel is a convolution whose window is the whole image, and whose channels are the
  examples of the batch. That of a 1 x 1 kernel is a plain product, computed 3 to 8 times as fast. For
  larger kernels the library uses one core, and transposes the whole batch first, which leaves the caches.
  Summing the gradients of a few examples at a time uses all cores: 1.1 to 2.4 times as fast.

Every element is a sum of the same products; only the order of the additions changes.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stratagem._src.core.types import Equation, Jaxpr, Tensor
from stratagem._src.jax_compat.primitives import CONVOLUTION
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.equations_of import bind_like, equations_of, is_sharded
from stratagem._src.jaxpr.walk import map_inner_jaxprs

__all__ = ["rewrite_convolutions"]

_MIN_CHANNELS_PER_PIECE = 8
_MAX_PIECES = 8
"""Each piece is compiled on its own, in about 15 ms."""

_MIN_PRODUCTS = 2**24
"""Of a convolution that is computed in pieces. One of fewer products takes less than 0.2 ms."""

_DTYPES = ("float16", "bfloat16", "float32")


def rewrite_convolutions(jaxpr: Jaxpr) -> Jaxpr:
    """Returns ``jaxpr`` with convolutions that XLA's CPU compiler has fast code for.

    Inputs and outputs stay the same variables. Bodies of loops, conditionals, calls and ``shard_map`` are
    rewritten too.
    """
    eqns: list[Equation] = []
    for eqn in jaxpr.eqns:
        eqn = map_inner_jaxprs(eqn, _rewrite_body)
        faster = _faster_form(eqn) if eqn.primitive.name == CONVOLUTION else None
        eqns.extend([eqn] if faster is None else equations_of(faster, eqn))
    is_same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if is_same else jaxpr.replace(eqns=eqns)


def _rewrite_body(name: str, position: int | None, body: Jaxpr) -> Jaxpr:
    jaxpr = rewrite_convolutions(body.jaxpr)
    return body if jaxpr is body.jaxpr else jax_core().ClosedJaxpr(jaxpr, body.consts)


def _faster_form(eqn: Equation) -> Callable[..., Any] | None:
    """Returns a function that computes the same convolution faster; ``None`` if it stays as it is."""
    params = eqn.params
    operands = [v.aval for v in eqn.invars]
    if (
        params["feature_group_count"] != 1
        or params["batch_group_count"] != 1
        or not 1 <= operands[0].ndim - 2 <= 3
        or any(math.prod(aval.shape) == 0 for aval in (*operands, eqn.outvars[0].aval))
        or any(aval.dtype not in _DTYPES for aval in operands)
        or is_sharded(eqn)
    ):
        return None
    if _is_product(eqn):
        return functools.partial(_product, eqn)
    num_pieces = _num_pieces(eqn)
    if num_pieces > 1:
        return functools.partial(_in_pieces, eqn, num_pieces)
    return None if _has_channels_last(eqn) else functools.partial(_channels_last, eqn)


def _window(eqn: Equation) -> list[int]:
    """Returns the spatial sizes of the kernel."""
    shape = eqn.invars[1].aval.shape
    return [shape[dim] for dim in eqn.params["dimension_numbers"].rhs_spec[2:]]


def _is_product(eqn: Equation) -> bool:
    """Returns whether there is one window, all of it within the image."""
    params = eqn.params
    image, numbers = eqn.invars[0].aval.shape, params["dimension_numbers"]
    result = eqn.outvars[0].aval.shape
    reach = [
        (size - 1) * d + 1 for size, d in zip(_window(eqn), params["rhs_dilation"], strict=True)
    ]
    return (
        all(result[dim] == 1 for dim in numbers.out_spec[2:])
        and all(low == 0 for low, _ in params["padding"])
        and all(dilation == 1 for dilation in params["lhs_dilation"])
        and all(n <= image[dim] for n, dim in zip(reach, numbers.lhs_spec[2:], strict=True))
    )


def _product(eqn: Equation, image: Tensor, kernel: Tensor) -> Any:
    params = eqn.params
    numbers = params["dimension_numbers"]
    for dim, size, dilation in zip(
        numbers.lhs_spec[2:], _window(eqn), params["rhs_dilation"], strict=True
    ):
        image = jax.lax.slice_in_dim(image, 0, (size - 1) * dilation + 1, dilation, dim)
    result = jax.lax.dot_general(
        image,
        kernel,
        ((numbers.lhs_spec[1:], numbers.rhs_spec[1:]), ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    batch, features = numbers.out_spec[:2]
    if batch > features:
        result = jax.lax.transpose(result, (1, 0))
    return jax.lax.reshape(result, eqn.outvars[0].aval.shape)


def _num_pieces(eqn: Equation) -> int:
    """Returns in how many pieces of its input channels a convolution is computed fastest."""
    numbers, result = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    window = math.prod(_window(eqn))
    if window <= math.prod(result.shape[dim] for dim in numbers.out_spec[2:]):
        return 1  # no kernel's gradient
    if result.dtype != np.float32:
        return 1  # each piece would be rounded
    num_channels = eqn.invars[0].aval.shape[numbers.lhs_spec[1]]
    if math.prod(result.shape) * window * num_channels < _MIN_PRODUCTS:
        return 1
    return min(num_channels // _MIN_CHANNELS_PER_PIECE, _MAX_PIECES)


def _in_pieces(eqn: Equation, num_pieces: int, image: Tensor, kernel: Tensor) -> Any:
    """Sums the convolutions of some input channels each."""
    numbers = eqn.params["dimension_numbers"]
    dims = (numbers.lhs_spec[1], numbers.rhs_spec[1])
    bounds = np.linspace(0, image.shape[dims[0]], num_pieces + 1, dtype=int).tolist()
    pieces = [
        _channels_last(
            eqn,
            *(
                jax.lax.slice_in_dim(operand, start, end, axis=dim)
                for operand, dim in zip((image, kernel), dims, strict=True)
            ),
        )
        for start, end in itertools.pairwise(bounds)
    ]
    return functools.reduce(jax.lax.add, pieces)


def _has_channels_last(eqn: Equation) -> bool:
    numbers = eqn.params["dimension_numbers"]
    orders = (_order(numbers.lhs_spec), _kernel_order(numbers.rhs_spec), _order(numbers.out_spec))
    return all(order == tuple(range(len(order))) for order in orders)


def _order(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the dimensions of an image: batch, space, channels."""
    return (spec[0], *spec[2:], spec[1])


def _kernel_order(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the dimensions of a kernel: space, input channels, output channels."""
    return (*spec[2:], spec[1], spec[0])


def _channels_last(eqn: Equation, image: Tensor, kernel: Tensor) -> Any:
    """Computes a convolution on transposed operands, and transposes its result."""
    numbers = eqn.params["dimension_numbers"]
    ndim = image.ndim
    spec = (0, ndim - 1, *range(1, ndim - 1))
    kernel_spec = (ndim - 1, ndim - 2, *range(ndim - 2))
    result = bind_like(
        eqn,
        [
            jax.lax.transpose(image, _order(numbers.lhs_spec)),
            jax.lax.transpose(kernel, _kernel_order(numbers.rhs_spec)),
        ],
        dimension_numbers=jax.lax.ConvDimensionNumbers(spec, kernel_spec, spec),
    )
    return jax.lax.transpose(result, np.argsort(_order(numbers.out_spec)).tolist())
