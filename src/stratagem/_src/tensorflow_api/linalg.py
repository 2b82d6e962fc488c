"""``tf.linalg``: products, norms, transposes and diagonals; some are also in ``tf`` itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    DTypeLike,
    IntegerLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    floats,
    integers,
    known,
    matched,
    numbers,
)

__all__ = [
    "adjoint",
    "band_part",
    "cross",
    "diag",
    "diag_part",
    "einsum",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "set_diag",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
]


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: DTypeLike = None,
    grad_a: bool = False,
    grad_b: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the product of two matrices, or of batches of matrices.

    Args:
        a: An array of at least two dimensions.
        b: An array of at least two dimensions and the same dtype.
        transpose_a: Whether to transpose ``a`` first.
        transpose_b: Whether to transpose ``b`` first.
        adjoint_a: Whether to transpose and conjugate ``a`` first.
        adjoint_b: Whether to transpose and conjugate ``b`` first.
        a_is_sparse: Ignored.
        b_is_sparse: Ignored.
        output_type: The dtype of the accumulation and the result.
        grad_a: Ignored.
        grad_b: Ignored.
        name: Ignored.

    JAX equivalent: ``jax.numpy.matmul``.

    >>> matmul([[1.0, 2.0]], [[3.0, 4.0]], transpose_b=True)
    Array([[11.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError(
            "tf.matmul takes transpose or adjoint for a matrix, got both. Pass one of them."
        )
    x, y = matched("matmul", a, b)
    if x.ndim < 2 or y.ndim < 2:
        raise InvalidArgumentError(
            f"tf.matmul needs at least two dimensions, got {x.shape} and {y.shape}. Use tf.tensordot, "
            "tf.linalg.matvec or tf.expand_dims."
        )
    x = adjoint(x) if adjoint_a else jnp.matrix_transpose(x) if transpose_a else x
    y = adjoint(y) if adjoint_b else jnp.matrix_transpose(y) if transpose_b else y
    if x.shape[-1] != y.shape[-2]:
        raise InvalidArgumentError(
            f"tf.matmul needs equal inner dimensions, got {x.shape} and {y.shape} after transposing."
        )
    return jnp.matmul(x, y, preferred_element_type=output_type)


def matvec(
    a: ArrayLike,
    b: ArrayLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the product of a matrix and a vector, or of batches of them.

    >>> matvec([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    Array([3., 7.], dtype=float32)
    """
    return matmul(a, as_tensor(b)[..., None], transpose_a=transpose_a, adjoint_a=adjoint_a)[..., 0]


def einsum(
    equation: str, *inputs: ArrayLike, name: str | None = None, optimize: str = "greedy"
) -> jax.Array:
    """Returns the Einstein summation of arrays.

    JAX equivalent: ``jax.numpy.einsum``.

    >>> einsum("ij,j->i", [[1.0, 2.0]], [3.0, 4.0])
    Array([11.], dtype=float32)
    """
    return jnp.einsum(equation, *matched("einsum", *inputs))


def tensordot(a: ArrayLike, b: ArrayLike, axes: AxisLike, name: str | None = None) -> jax.Array:
    """Contracts arrays over axes: a number of last and first axes, or a list of axes for each array.

    >>> tensordot([[1.0, 2.0]], [3.0, 4.0], 1)
    Array([11.], dtype=float32)
    """
    x, y = matched("tensordot", a, b)
    if isinstance(axes, (list, tuple)):
        first, second = (integers("tensordot", "axes", one) for one in axes)
        return jnp.tensordot(x, y, (first, second))
    given = np.asarray(known(axes))
    return jnp.tensordot(
        x, y, int(given) if given.ndim == 0 else tuple(map(tuple, given.reshape(2, -1).tolist()))
    )


def cross(a: ArrayLike, b: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the cross product of three-element vectors.

    >>> cross([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    Array([0., 0., 1.], dtype=float32)
    """
    return jnp.cross(*matched("linalg.cross", a, b))


def norm(
    tensor: ArrayLike,
    ord: Any = "euclidean",
    axis: AxisLike = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the norm of the flattened array, of vectors along an axis, or of matrices along two axes.

    Args:
        tensor: An array of floats.
        ord: ``"euclidean"``, 1, 2, ``numpy.inf`` or another number; for matrices also ``"fro"``.
        axis: An axis, or two for matrices; default: the flattened array.
        keepdims: Whether to keep the axes with size 1.
        name: Ignored.

    >>> norm([[3.0, 4.0]])
    Array(5., dtype=float32)
    """
    x = floats("norm", tensor)
    keep = bool(keepdims)
    axes = axes_of("norm", axis, x.ndim)
    if isinstance(axis, (list, tuple)) and len(axis) == 2:
        order = "fro" if ord in ("euclidean", "fro") else ord
        return jnp.linalg.norm(x, order, axes, keep)
    if ord in ("fro", "euclidean", 2):
        squares = jnp.sum(jnp.real(x * jnp.conj(x)), axes, keepdims=keep)
        return jnp.sqrt(squares).astype(x.dtype)
    size = jnp.abs(x)
    if ord == 1:
        return jnp.sum(size, axes, keepdims=keep)
    if ord == np.inf:
        return jnp.max(size, axes, keepdims=keep)
    return jnp.sum(size**ord, axes, keepdims=keep) ** (1.0 / ord)


def normalize(
    tensor: ArrayLike, ord: Any = "euclidean", axis: AxisLike = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the array divided by its norm, and the norm.

    >>> normalize([3.0, 4.0])
    (Array([0.6, 0.8], dtype=float32), Array([5.], dtype=float32))
    """
    x = floats("linalg.normalize", tensor)
    size = norm(x, ord, axis, keepdims=True)
    return x / size, size


def adjoint(matrix: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the conjugate transpose of matrices.

    >>> adjoint([[1 + 1j, 2]])
    Array([[1.-1.j],
           [2.-0.j]], dtype=complex64)
    """
    return jnp.conj(jnp.matrix_transpose(as_tensor(matrix)))


def matrix_transpose(a: ArrayLike, name: str | None = None, conjugate: bool = False) -> jax.Array:
    """Returns the transpose of matrices.

    >>> matrix_transpose([[1, 2]])
    Array([[1],
           [2]], dtype=int32)
    """
    x = as_tensor(a)
    return adjoint(x) if conjugate else jnp.matrix_transpose(x)


def trace(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the sum of the diagonal of matrices.

    >>> trace([[1, 2], [3, 4]])
    Array(5, dtype=int32)
    """
    array = numbers("linalg.trace", x)
    return jnp.trace(array, axis1=-2, axis2=-1, dtype=array.dtype)


def diag_part(
    input: ArrayLike,
    name: str | None = "diag_part",
    k: IntegerLike = 0,
    padding_value: int = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Returns the ``k``-th diagonal of matrices. Only a single ``k`` is supported.

    >>> diag_part([[1, 2], [3, 4]])
    Array([1, 4], dtype=int32)
    """
    [offset] = integers("linalg.diag_part", "k", k)
    return jnp.diagonal(as_tensor(input), offset, -2, -1)


def diag(
    diagonal: ArrayLike,
    name: str | None = "diag",
    k: IntegerLike = 0,
    num_rows: IntegerLike = -1,
    num_cols: IntegerLike = -1,
    padding_value: int = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Returns square matrices with the given ``k``-th diagonal. Only a single ``k`` is supported.

    >>> diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = as_tensor(diagonal)
    [offset] = integers("linalg.diag", "k", k)
    if num_rows != -1 or num_cols != -1:
        raise NotImplementedError(
            "num_rows and num_cols of tf.linalg.diag are not supported. Use tf.pad."
        )
    size = x.shape[-1] + abs(offset)
    mask = np.eye(size, k=offset, dtype=bool)
    spread = jnp.zeros((*x.shape[:-1], size), x.dtype)
    spread = jax.lax.dynamic_update_slice(spread, x, (0,) * (x.ndim - 1) + (max(-offset, 0),))
    return jnp.where(mask, spread[..., :, None], jnp.asarray(padding_value, x.dtype))


def set_diag(
    input: ArrayLike,
    diagonal: ArrayLike,
    name: str | None = "set_diag",
    k: IntegerLike = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Returns matrices with the main diagonal replaced.

    >>> set_diag([[1, 2], [3, 4]], [8, 9])
    Array([[8, 2],
           [3, 9]], dtype=int32)
    """
    x, values = matched("linalg.set_diag", input, diagonal)
    if integers("linalg.set_diag", "k", k) != (0,):
        raise NotImplementedError(
            "tf.linalg.set_diag supports only the main diagonal (k=0), got another k."
        )
    place = np.arange(min(x.shape[-2:]))
    return x.at[..., place, place].set(values)


def band_part(
    input: ArrayLike, num_lower: IntegerLike, num_upper: IntegerLike, name: str | None = None
) -> jax.Array:
    """Keeps ``num_lower`` and ``num_upper`` diagonals below and above the main one; -1 keeps all.

    >>> band_part([[1, 2], [3, 4]], 0, -1)
    Array([[1, 2],
           [0, 4]], dtype=int32)
    """
    x = as_tensor(input)
    [lower], [upper] = (
        integers("linalg.band_part", "num_lower", n) for n in (num_lower, num_upper)
    )
    row, column = np.ogrid[: x.shape[-2], : x.shape[-1]]
    kept = ((lower < 0) | (row - column <= lower)) & ((upper < 0) | (column - row <= upper))
    return jnp.where(kept, x, jnp.zeros((), x.dtype))


def tensor_diag(diagonal: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns an array of twice the rank, with ``diagonal`` on its diagonal.

    >>> tensor_diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = as_tensor(diagonal)
    return jnp.diag(x.ravel()).reshape(x.shape * 2)


def tensor_diag_part(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the diagonal of an array: the elements where both halves of the index are equal.

    >>> tensor_diag_part([[1, 2], [3, 4]])
    Array([1, 4], dtype=int32)
    """
    x = as_tensor(input)
    shape = x.shape[: x.ndim // 2]
    size = int(np.prod(shape))
    return jnp.diagonal(x.reshape(size, size)).reshape(shape)
