"""``tf.linalg``: products, norms, parts of matrices; some are also in ``tf`` itself."""

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
    ScalarLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    axes_of,
    floats,
    integers,
    known,
    matched,
    numbers,
    tensor,
)

__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cholesky_solve",
    "cross",
    "det",
    "diag",
    "diag_part",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "einsum",
    "expm",
    "inv",
    "logdet",
    "lstsq",
    "matmul",
    "matrix_rank",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "pinv",
    "qr",
    "set_diag",
    "slogdet",
    "solve",
    "svd",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
    "triangular_solve",
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
    """Returns the product of matrices, which may be in batches.

    Args:
        a: An array of at least two dimensions.
        b: Likewise, of the same dtype.
        transpose_a: Whether ``a`` is transposed first.
        transpose_b: Whether ``b`` is transposed first.
        adjoint_a: Whether ``a`` is transposed and conjugated first.
        adjoint_b: Whether ``b`` is transposed and conjugated first.
        a_is_sparse: Ignored.
        b_is_sparse: Ignored.
        output_type: The dtype in which products are added up and returned.
        grad_a: Ignored.
        grad_b: Ignored.
        name: Ignored.

    JAX equivalent: ``jax.numpy.matmul``.

    >>> matmul([[1.0, 2.0]], [[3.0, 4.0]], transpose_b=True)
    Array([[11.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError(
            "A matrix is transposed or adjoint, not both: give one of the two arguments."
        )
    x, y = matched("matmul", a, b)
    if x.ndim < 2 or y.ndim < 2:
        raise InvalidArgumentError(
            f"tf.matmul needs two dimensions or more, got {x.shape} and {y.shape}. Use tf.tensordot, "
            "tf.linalg.matvec or tf.expand_dims."
        )
    x = adjoint(x) if adjoint_a else jnp.matrix_transpose(x) if transpose_a else x
    y = adjoint(y) if adjoint_b else jnp.matrix_transpose(y) if transpose_b else y
    if x.shape[-1] != y.shape[-2]:
        raise InvalidArgumentError(
            f"tf.matmul needs as many columns as rows, got {x.shape} and {y.shape} after transposing."
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
    """Returns the product of matrices and vectors.

    >>> matvec([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    Array([3., 7.], dtype=float32)
    """
    return matmul(a, tensor(b)[..., None], transpose_a=transpose_a, adjoint_a=adjoint_a)[..., 0]


def einsum(
    equation: str, *inputs: ArrayLike, name: str | None = None, optimize: str = "greedy"
) -> jax.Array:
    """Returns products of arrays, summed over the indices that an equation leaves out.

    JAX equivalent: ``jax.numpy.einsum``.

    >>> einsum("ij,j->i", [[1.0, 2.0]], [3.0, 4.0])
    Array([11.], dtype=float32)
    """
    return jnp.einsum(equation, *matched("einsum", *inputs))


def tensordot(a: ArrayLike, b: ArrayLike, axes: AxisLike, name: str | None = None) -> jax.Array:
    """Returns the product of arrays, summed over axes: so many last and first ones, or a list for each.

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
    """Returns the cross product of vectors of three elements.

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
    """Returns the norm of an array as one vector, of vectors along an axis, or of matrices along two.

    Args:
        tensor: An array of floats.
        ord: ``"euclidean"``, 1, 2, ``numpy.inf`` or another number; of matrices also ``"fro"``.
        axis: An axis, or two for matrices; default: all elements are one vector.
        keepdims: Whether the axes stay, with size 1.
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
    """Returns matrices transposed and conjugated.

    >>> adjoint([[1 + 1j, 2]])
    Array([[1.-1.j],
           [2.-0.j]], dtype=complex64)
    """
    return jnp.conj(jnp.matrix_transpose(tensor(matrix)))


def matrix_transpose(a: ArrayLike, name: str | None = None, conjugate: bool = False) -> jax.Array:
    """Returns matrices transposed.

    >>> matrix_transpose([[1, 2]])
    Array([[1],
           [2]], dtype=int32)
    """
    x = tensor(a)
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
    """Returns one diagonal of matrices; several of them are not supported.

    >>> diag_part([[1, 2], [3, 4]])
    Array([1, 4], dtype=int32)
    """
    [offset] = integers("linalg.diag_part", "k", k)
    return jnp.diagonal(tensor(input), offset, -2, -1)


def diag(
    diagonal: ArrayLike,
    name: str | None = "diag",
    k: IntegerLike = 0,
    num_rows: IntegerLike = -1,
    num_cols: IntegerLike = -1,
    padding_value: int = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Returns square matrices with these diagonals, the ``k``-th ones; several in one are not supported.

    >>> diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = tensor(diagonal)
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
            "tf.linalg.set_diag sets the main diagonal only here, got another k."
        )
    place = np.arange(min(x.shape[-2:]))
    return x.at[..., place, place].set(values)


def band_part(
    input: ArrayLike, num_lower: IntegerLike, num_upper: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns matrices with only so many diagonals below and above the main one, all of them for -1.

    >>> band_part([[1, 2], [3, 4]], 0, -1)
    Array([[1, 2],
           [0, 4]], dtype=int32)
    """
    x = tensor(input)
    [lower], [upper] = (
        integers("linalg.band_part", "num_lower", n) for n in (num_lower, num_upper)
    )
    row, column = np.ogrid[: x.shape[-2], : x.shape[-1]]
    kept = ((lower < 0) | (row - column <= lower)) & ((upper < 0) | (column - row <= upper))
    return jnp.where(kept, x, jnp.zeros((), x.dtype))


def tensor_diag(diagonal: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns an array of twice the dimensions, with these elements on its diagonal.

    >>> tensor_diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = tensor(diagonal)
    return jnp.diag(x.ravel()).reshape(x.shape * 2)


def tensor_diag_part(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the elements where both halves of the indices are equal.

    >>> tensor_diag_part([[1, 2], [3, 4]])
    Array([1, 4], dtype=int32)
    """
    x = tensor(input)
    shape = x.shape[: x.ndim // 2]
    size = int(np.prod(shape))
    return jnp.diagonal(x.reshape(size, size)).reshape(shape)


def cholesky(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the lower triangular matrices whose products with their adjoints are these.

    >>> cholesky([[4.0]])
    Array([[2.]], dtype=float32)
    """
    x = floats("linalg.cholesky", input)
    return jnp.linalg.cholesky(jnp.tril(x) + jnp.conj(jnp.matrix_transpose(jnp.tril(x, -1))))


def cholesky_solve(chol: ArrayLike, rhs: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the solution of a system whose matrix has this Cholesky decomposition.

    >>> cholesky_solve([[2.0]], [[8.0]])
    Array([[2.]], dtype=float32)
    """
    lower, right = matched("linalg.cholesky_solve", chol, rhs)
    half = jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True)
    return jax.lax.linalg.triangular_solve(
        lower, half, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )


def det(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the determinants of matrices.

    >>> det([[2.0]])
    Array(2., dtype=float32)
    """
    return jnp.linalg.det(floats("linalg.det", input))


def logdet(matrix: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the logarithm of the determinants of Hermitian positive definite matrices.

    >>> logdet([[1.0]])
    Array(0., dtype=float32)
    """
    diagonal = jnp.diagonal(cholesky(matrix), axis1=-2, axis2=-1)
    return 2.0 * jnp.sum(jnp.log(jnp.real(diagonal)), -1)


def slogdet(input: ArrayLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Returns the sign of determinants, and the logarithm of their absolute values.

    >>> slogdet([[1.0]])
    (Array(1., dtype=float32), Array(0., dtype=float32))
    """
    sign, logarithm = jnp.linalg.slogdet(floats("linalg.slogdet", input))
    return sign, logarithm


def inv(input: ArrayLike, adjoint: bool = False, name: str | None = None) -> jax.Array:
    """Returns the inverse of matrices, or of their adjoints.

    >>> inv([[2.0]])
    Array([[0.5]], dtype=float32)
    """
    x = floats("linalg.inv", input)
    return jnp.linalg.inv(jnp.conj(jnp.matrix_transpose(x)) if adjoint else x)


def pinv(
    a: ArrayLike, rcond: ScalarLike = None, validate_args: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the pseudo-inverse of matrices.

    >>> pinv([[2.0]])
    Array([[0.5]], dtype=float32)
    """
    x = floats("linalg.pinv", a)
    cut = 10 * max(x.shape[-2:]) * np.finfo(x.dtype).eps if rcond is None else rcond
    return jnp.linalg.pinv(x, cut)


def solve(
    matrix: ArrayLike, rhs: ArrayLike, adjoint: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the solutions of systems of linear equations.

    >>> solve([[2.0]], [[8.0]])
    Array([[4.]], dtype=float32)
    """
    x, right = matched("linalg.solve", matrix, rhs)
    return jnp.linalg.solve(jnp.conj(jnp.matrix_transpose(x)) if adjoint else x, right)


def triangular_solve(
    matrix: ArrayLike,
    rhs: ArrayLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the solutions of systems of linear equations with triangular matrices.

    >>> triangular_solve([[2.0]], [[8.0]])
    Array([[4.]], dtype=float32)
    """
    x, right = matched("linalg.triangular_solve", matrix, rhs)
    batch = np.broadcast_shapes(x.shape[:-2], right.shape[:-2])
    x, right = (jnp.broadcast_to(m, batch + m.shape[-2:]) for m in (x, right))
    return jax.lax.linalg.triangular_solve(
        x, right, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint
    )


def lstsq(
    matrix: ArrayLike,
    rhs: ArrayLike,
    l2_regularizer: float = 0.0,
    fast: bool = True,
    name: str | None = None,
) -> jax.Array:
    """Returns the solutions of linear least squares problems.

    >>> lstsq([[2.0], [2.0]], [[8.0], [8.0]])
    Array([[4.]], dtype=float32)
    """
    x, right = matched("linalg.lstsq", matrix, rhs)
    if fast:
        product = adjoint(x) @ x + l2_regularizer * jnp.eye(x.shape[-1], dtype=x.dtype)
        return jnp.linalg.solve(product, adjoint(x) @ right)
    return jnp.linalg.pinv(x) @ right


def qr(
    input: ArrayLike, full_matrices: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Returns orthogonal and upper triangular matrices whose products are these.

    Signs of columns may differ between platforms.

    >>> [x.shape for x in qr([[2.0], [1.0]])]
    [(2, 1), (1, 1)]
    """
    q, r = jnp.linalg.qr(floats("linalg.qr", input), "complete" if full_matrices else "reduced")
    return q, r


def svd(
    tensor: ArrayLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Returns singular values ``s``, and matrices ``u`` and ``v`` of singular vectors.

    Signs of vectors may differ between platforms.

    >>> svd([[2.0]], compute_uv=False)
    Array([2.], dtype=float32)
    """
    x = floats("linalg.svd", tensor)
    if not compute_uv:
        return jnp.linalg.svd(x, compute_uv=False)
    u, s, vh = jnp.linalg.svd(x, full_matrices=full_matrices)
    return s, u, adjoint(vh)


def eigh(tensor: ArrayLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Returns eigenvalues and eigenvectors of Hermitian matrices, of which the lower triangle is read.

    >>> eigh([[2.0]])[0]
    Array([2.], dtype=float32)
    """
    values, vectors = jnp.linalg.eigh(floats("linalg.eigh", tensor), "L", symmetrize_input=False)
    return values, vectors


def eigvalsh(tensor: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the eigenvalues of Hermitian matrices, of which the lower triangle is read.

    >>> eigvalsh([[2.0]])
    Array([2.], dtype=float32)
    """
    return eigh(tensor)[0]


def eig(tensor: ArrayLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Returns complex eigenvalues and eigenvectors of square matrices; on CPU only, as in JAX.

    >>> eig([[2.0]])[0]
    Array([2.+0.j], dtype=complex64)
    """
    values, vectors = jnp.linalg.eig(floats("linalg.eig", tensor))
    return values, vectors


def eigvals(tensor: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the complex eigenvalues of square matrices; on CPU only, as in JAX.

    >>> eigvals([[2.0]])
    Array([2.+0.j], dtype=complex64)
    """
    return jnp.linalg.eigvals(floats("linalg.eigvals", tensor))


def expm(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the exponential of matrices.

    >>> expm([[0.0]])
    Array([[1.]], dtype=float32)
    """
    return jax.scipy.linalg.expm(floats("linalg.expm", input))


def matrix_rank(
    a: ArrayLike, tol: ScalarLike = None, validate_args: bool = False, name: str | None = None
) -> jax.Array:
    """Returns how many singular values of matrices are not about zero.

    >>> matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Array(1, dtype=int32)
    """
    return jnp.linalg.matrix_rank(floats("linalg.matrix_rank", a), tol).astype(jnp.int32)
