"""``tf.linalg``: decompositions, determinants, inverses, and solutions of linear systems."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.types import (
    ArrayLike,
    ScalarLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    floats,
    matched,
)
from stratagem._src.tensorflow_api.linalg import adjoint

__all__ = [
    "cholesky",
    "cholesky_solve",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "logdet",
    "lstsq",
    "matrix_rank",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "triangular_solve",
]


def cholesky(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the Cholesky factors of Hermitian positive definite matrices.

    >>> cholesky([[4.0]])
    Array([[2.]], dtype=float32)
    """
    x = floats("linalg.cholesky", input)
    return jnp.linalg.cholesky(jnp.tril(x) + jnp.conj(jnp.matrix_transpose(jnp.tril(x, -1))))


def cholesky_solve(chol: ArrayLike, rhs: ArrayLike, name: str | None = None) -> jax.Array:
    """Solves linear systems, given the Cholesky factors of their matrices.

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
    """Returns the log-determinants of Hermitian positive definite matrices.

    >>> logdet([[1.0]])
    Array(0., dtype=float32)
    """
    diagonal = jnp.diagonal(cholesky(matrix), axis1=-2, axis2=-1)
    return 2.0 * jnp.sum(jnp.log(jnp.real(diagonal)), -1)


def slogdet(input: ArrayLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Returns the signs of determinants, and the logarithms of their absolute values.

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
    """Solves systems of linear equations.

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
    """Solves systems of linear equations with triangular matrices.

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
    """Solves linear least squares problems.

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
    """Returns the QR decomposition of matrices.

    The signs of columns may differ between platforms.

    >>> [x.shape for x in qr([[2.0], [1.0]])]
    [(2, 1), (1, 1)]
    """
    q, r = jnp.linalg.qr(floats("linalg.qr", input), "complete" if full_matrices else "reduced")
    return q, r


def svd(
    tensor: ArrayLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Returns singular values ``s``, and matrices ``u`` and ``v`` of singular vectors.

    The signs of vectors may differ between platforms.

    >>> svd([[2.0]], compute_uv=False)
    Array([2.], dtype=float32)
    """
    x = floats("linalg.svd", tensor)
    if not compute_uv:
        return jnp.linalg.svd(x, compute_uv=False)
    u, s, vh = jnp.linalg.svd(x, full_matrices=full_matrices)
    return s, u, adjoint(vh)


def eigh(tensor: ArrayLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues and eigenvectors of Hermitian matrices. Reads only the lower triangle.

    >>> eigh([[2.0]])[0]
    Array([2.], dtype=float32)
    """
    values, vectors = jnp.linalg.eigh(floats("linalg.eigh", tensor), "L", symmetrize_input=False)
    return values, vectors


def eigvalsh(tensor: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the eigenvalues of Hermitian matrices. Reads only the lower triangle.

    >>> eigvalsh([[2.0]])
    Array([2.], dtype=float32)
    """
    return eigh(tensor)[0]


def eig(tensor: ArrayLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Returns the complex eigenvalues and eigenvectors of square matrices; on CPU only, as in JAX.

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
    """Returns the rank of matrices: the number of singular values above ``tol``.

    >>> matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Array(1, dtype=int32)
    """
    return jnp.linalg.matrix_rank(floats("linalg.matrix_rank", a), tol).astype(jnp.int32)
