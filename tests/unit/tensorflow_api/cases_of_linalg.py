"""``tf.linalg``, and what of it is in ``tf`` itself."""

import numpy as np
from compared_cases import case

A = np.array([[4.0, 1.0], [1.0, 3.0]], np.float32)
B = np.array([[1.0, -2.0], [0.5, 1.5]], np.float32)
BATCH = np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 5
RECTANGLE = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], np.float32)
V = np.array([3.0, -4.0], np.float32)
I = np.array([[1, 2], [3, 4]], np.int32)  # noqa: E741
C = np.array([[1 + 2j, 0.5], [2, -1j]], np.complex64)

CASES = [
    case("matmul", A, B, gradient=True),
    case("matmul", RECTANGLE, RECTANGLE, transpose_b=True, gradient=True),
    case("matmul", RECTANGLE, RECTANGLE, transpose_a=True),
    case("matmul", BATCH, BATCH, transpose_b=True, gradient=True),
    case("matmul", C, C, adjoint_a=True),
    case("matmul", I, I),
    case("matmul", A, I),
    case("matmul", A, V),
    case("matmul", RECTANGLE, RECTANGLE),
    case("matmul", np.zeros((0, 2), np.float32), A),
    case("linalg.matvec", A, V, gradient=True),
    case("einsum", "ij,jk->ik", A, B, gradient=True),
    case("einsum", "bij,bkj->bik", BATCH, BATCH),
    case("tensordot", A, B, 1, gradient=True),
    case("tensordot", BATCH, RECTANGLE, [[1, 2], [0, 1]], gradient=True),
    case("tensordot", V, V, 0),
    case("linalg.cross", np.array([1.0, 2, 3], np.float32), np.array([0.0, 1, -1], np.float32)),
    case("norm", RECTANGLE, gradient=True),
    case("norm", RECTANGLE, 1),
    case("norm", RECTANGLE, np.inf, axis=1),
    case("norm", RECTANGLE, 3, axis=0, keepdims=True),
    case("norm", RECTANGLE, axis=-1, gradient=True),
    case("norm", A, "fro", axis=[0, 1]),
    case("norm", I),
    case("linalg.normalize", V, gradient=True),
    case("linalg.global_norm", [A, None, V]),
    case("linalg.adjoint", C),
    case("linalg.matrix_transpose", BATCH),
    case("linalg.trace", np.stack([A, B]), gradient=True),
    case("linalg.trace", I),
    case("linalg.diag_part", np.stack([A, B]), gradient=True),
    case("linalg.diag_part", A, k=1),
    case("linalg.diag", RECTANGLE, gradient=True),
    case("linalg.diag", V, k=1),
    case("linalg.diag", V, k=-1),
    case("linalg.set_diag", A, V),
    case("linalg.band_part", np.ones((3, 3), np.float32), 1, 0, gradient=True),
    case("linalg.band_part", np.ones((3, 4), np.float32), -1, 1),
    case("linalg.tensor_diag", RECTANGLE),
    case("linalg.tensor_diag_part", np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)),
    case("linalg.cholesky", A),
    case("linalg.cholesky_solve", np.tril(A), np.array([[1.0], [2.0]], np.float32)),
    case("linalg.det", A, gradient=True),
    case("linalg.logdet", A),
    case("linalg.slogdet", B),
    case("linalg.inv", B, gradient=True),
    case("linalg.inv", B, adjoint=True),
    case("linalg.pinv", RECTANGLE, rtol=1e-4),
    case("linalg.solve", B, A, gradient=True),
    case("linalg.solve", B, A, adjoint=True),
    case("linalg.triangular_solve", np.tril(B), A),
    case("linalg.triangular_solve", np.triu(B), A, lower=False, adjoint=True),
    case("linalg.lstsq", RECTANGLE.T, np.array([[1.0], [2.0], [4.0]], np.float32), rtol=1e-3),
    case("linalg.svd", RECTANGLE, compute_uv=False),
    case("linalg.svd", RECTANGLE, through=lambda r: abs(r[2])),
    case("linalg.qr", RECTANGLE.T, through=lambda r: [abs(x) for x in r]),
    case("linalg.eigvalsh", A),
    case("linalg.eigh", A, through=lambda r: [r[0], abs(r[1])]),
    case("linalg.expm", B),
    case("linalg.matrix_rank", np.ones((2, 2), np.float32)),
    case("linalg.eye", 2),
    case("linalg.l2_normalize", RECTANGLE, 1),
]
