"""Recognizes a loss that is the mean over one replica's examples, or its share of the global mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.primitives import (
    ADDITIONS,
    DIV,
    DOT_GENERAL,
    MUL,
    NEG,
    REDUCE_SUM,
)
from stratagem._src.jax_compat.tracer_producer import Producer
from stratagem._src.jaxpr.traced_value import TRANSPARENT, TracedValue

__all__ = ["is_global_share", "is_local_mean"]

_MAX_OPERATIONS = 200


def is_local_mean(loss: Tensor, num_replicas: int) -> bool:
    """Returns whether a traced scalar is, or contains as a term, a mean over one replica's examples.

    That is a sum over an array, divided by the number of its elements or by the size of its first
    dimension. A sum that is divided by the size of the *global* batch, as in ``compute_average_loss``, is
    not, nor is anything that this function does not understand.

    Args:
        loss: The scalar; ``False`` if it is not traced.
        num_replicas: Number of replicas, to recognize a global batch size.
    """
    return any(
        _is_mean(shape, math.prod(divisors), num_replicas) for shape, divisors in _find_sums(loss)
    )


def is_global_share(loss: Tensor, num_replicas: int) -> bool:
    """Returns whether a traced scalar has a sum over one replica's examples, divided by the global batch.

    Only if one division does so: ``0.5 * jnp.mean(x)`` is a mean, also where there are two replicas.

    Args:
        loss: The scalar; ``False`` if it is not traced.
        num_replicas: Number of replicas.
    """
    return any(
        shape and any(_is_global_size(divisor, shape, num_replicas) for divisor in divisors)
        for shape, divisors in _find_sums(loss)
    )


def _is_global_size(divisor: float, shape: tuple[int, ...], num_replicas: int) -> bool:
    own = (shape[0], math.prod(shape))
    return divisor not in own and divisor in [num_replicas * size for size in own]


def _find_sums(loss: Tensor) -> Iterator[tuple[tuple[int, ...], list[float]]]:
    """Yields the shape of each sum over a whole array in a scalar, with the divisors of the sum.

    It follows the operations that computed the scalar backwards, through casts, signs, sums of terms and
    factors that are numbers, to sums over arrays.
    """
    pending: list[tuple[TracedValue, list[float]]] = [(TracedValue(loss), [])]
    for _ in range(_MAX_OPERATIONS):
        if not pending:
            return
        value, divisors = pending.pop()
        found = value.producer()
        if found is None:
            continue
        operation, operands = found
        name = operation.primitive
        if name in TRANSPARENT or name == NEG:
            pending.append((operands[0], divisors))
        elif name in ADDITIONS:
            pending += [(operand, divisors) for operand in operands]
        elif name == DIV and operands[1].number:
            pending.append((operands[0], [*divisors, operands[1].number]))
        elif name == MUL:
            for operand, factor in (operands, operands[::-1]):
                if factor.number:
                    pending.append((operand, [*divisors, 1 / factor.number]))
        elif name in (REDUCE_SUM, DOT_GENERAL) and _sums_everything(operation, operands):
            yield operands[0].shape, divisors


def _sums_everything(operation: Producer, operands: Sequence[TracedValue]) -> bool:
    """Returns whether a sum or a product is over all elements."""
    if operation.primitive == REDUCE_SUM:
        return len(operation.params["axes"]) == len(operands[0].shape)
    (contracted, _), _ = operation.params["dimension_numbers"]
    return all(len(contracted) == len(operand.shape) for operand in operands)


def _is_mean(shape: tuple[int, ...], divisor: float, num_replicas: int) -> bool:
    def equal(size: float) -> bool:
        return math.isclose(divisor, size, rel_tol=1e-5)

    if not shape or equal(1):  # not divided at all
        return False
    if any(equal(num_replicas * size) for size in shape):
        return False  # may be the global batch size
    return equal(math.prod(shape)) or equal(shape[0])
