"""``tf.linalg``: matrix products, norms, decompositions and linear solvers."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.array_creation import (
    eye,
)
from stratagem._src.tensorflow_api.clipping import (
    global_norm,
)
from stratagem._src.tensorflow_api.linalg import (
    adjoint,
    band_part,
    cross,
    diag,
    diag_part,
    einsum,
    matmul,
    matrix_transpose,
    matvec,
    norm,
    normalize,
    set_diag,
    tensor_diag,
    tensor_diag_part,
    tensordot,
    trace,
)
from stratagem._src.tensorflow_api.linalg_decompositions import (
    cholesky,
    cholesky_solve,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    expm,
    inv,
    logdet,
    lstsq,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    triangular_solve,
)
from stratagem._src.tensorflow_api.math_special import (
    l2_normalize,
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
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
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

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
