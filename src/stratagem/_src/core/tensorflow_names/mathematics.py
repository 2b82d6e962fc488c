"""``tf.math``, ``tf.linalg`` and ``tf.signal``, and what of them is also in ``tf`` itself."""

__all__ = ["IN_TOP_K", "L2_NORMALIZE", "MATHEMATICS"]

_SAME_NAMES = (
    "abs acos acosh add angle asin asinh atan atan2 atanh bincount ceil conj "
    "cos cosh count_nonzero divide equal exp expm1 floor greater greater_equal "
    "imag less less_equal log log1p logical_and logical_not logical_or logical_xor maximum "
    "minimum mod multiply negative nextafter not_equal polyval pow real reciprocal rint round "
    "sign sin sinh sqrt square subtract tan tanh"
)
_ALIKE = {name: f"jax.numpy.{name}" for name in _SAME_NAMES.split()}
_REDUCTIONS = {
    "reduce_all": "jax.numpy.all(x, axis)",
    "reduce_any": "jax.numpy.any(x, axis)",
    "reduce_logsumexp": "jax.nn.logsumexp(x, axis)",
    "reduce_max": "jax.numpy.max(x, axis)",
    "reduce_mean": "jax.numpy.mean(x, axis), a float also for whole numbers",
    "reduce_min": "jax.numpy.min(x, axis)",
    "reduce_prod": "jax.numpy.prod(x, axis)",
    "reduce_sum": "jax.numpy.sum(x, axis)",
}
L2_NORMALIZE = (
    "x * jax.lax.rsqrt(jax.numpy.maximum(jax.numpy.sum(x**2, axis, keepdims=True), 1e-12))"
)
IN_TOP_K = (
    "(predictions > jax.numpy.take_along_axis(predictions, targets[:, None], 1)).sum(axis=1) < k"
)
_RENAMED = {
    "argmax": "jax.numpy.argmax(x, axis=0): without an axis it looks at the flattened array",
    "argmin": "jax.numpy.argmin(x, axis=0): without an axis it looks at the flattened array",
    "accumulate_n": "sum(arrays), Python's own",
    "add_n": "sum(arrays), Python's own",
    "approx_max_k": "jax.lax.approx_max_k",
    "approx_min_k": "jax.lax.approx_min_k",
    "bessel_i0": "jax.scipy.special.i0",
    "bessel_i0e": "jax.scipy.special.i0e",
    "bessel_i1": "jax.scipy.special.i1",
    "bessel_i1e": "jax.scipy.special.i1e",
    "betainc": "jax.scipy.special.betainc",
    "confusion_matrix": "jax.numpy.zeros((n, n), int).at[labels, predictions].add(1)",
    "cumprod": "jax.numpy.cumprod(x, axis=0): without an axis it flattens the array",
    "cumsum": "jax.numpy.cumsum(x, axis=0): without an axis it flattens the array",
    "cumulative_logsumexp": "jax.lax.cumlogsumexp",
    "digamma": "jax.scipy.special.digamma",
    "divide_no_nan": "jax.numpy.where(y == 0, 0, x / jax.numpy.where(y == 0, 1, y))",
    "erf": "jax.scipy.special.erf",
    "erfc": "jax.scipy.special.erfc",
    "erfinv": "jax.scipy.special.erfinv",
    "floordiv": "jax.numpy.floor_divide",
    "floormod": "jax.numpy.mod",
    "igamma": "jax.scipy.special.gammainc",
    "igammac": "jax.scipy.special.gammaincc",
    "in_top_k": IN_TOP_K,
    "invert_permutation": "jax.numpy.argsort",
    "is_finite": "jax.numpy.isfinite",
    "is_inf": "jax.numpy.isinf",
    "is_nan": "jax.numpy.isnan",
    "is_non_decreasing": "(jax.numpy.diff(x.ravel()) >= 0).all()",
    "is_strictly_increasing": "(jax.numpy.diff(x.ravel()) > 0).all()",
    "l2_normalize": L2_NORMALIZE,
    "lgamma": "jax.scipy.special.gammaln",
    "log_sigmoid": "jax.nn.log_sigmoid",
    "log_softmax": "jax.nn.log_softmax",
    "multiply_no_nan": "jax.numpy.where(y == 0, 0, x * y)",
    "ndtri": "jax.scipy.special.ndtri",
    "polygamma": "jax.scipy.special.polygamma",
    "reciprocal_no_nan": "jax.numpy.where(x == 0, 0, 1 / jax.numpy.where(x == 0, 1, x))",
    "reduce_euclidean_norm": "jax.numpy.linalg.norm(x, axis=axis)",
    "reduce_std": "jax.numpy.std(x, axis)",
    "reduce_variance": "jax.numpy.var(x, axis)",
    "rsqrt": "jax.lax.rsqrt",
    "scalar_mul": "jax.numpy.multiply",
    "segment_max": "jax.ops.segment_max, where a segment without rows is -inf instead of 0",
    "segment_min": "jax.ops.segment_min, where a segment without rows is inf instead of 0",
    "segment_prod": "jax.ops.segment_prod",
    "segment_sum": "jax.ops.segment_sum",
    "sigmoid": "jax.nn.sigmoid",
    "softmax": "jax.nn.softmax",
    "softplus": "jax.nn.softplus",
    "softsign": "jax.nn.soft_sign",
    "squared_difference": "jax.numpy.square(x - y)",
    "top_k": "jax.lax.top_k(x, k)",
    "truediv": "jax.numpy.true_divide",
    "unsorted_segment_max": (
        "jax.ops.segment_max(x, ids, n), where a segment without rows is -inf instead of the lowest number"
    ),
    "unsorted_segment_min": (
        "jax.ops.segment_min(x, ids, n), where a segment without rows is inf instead of the highest number"
    ),
    "unsorted_segment_prod": "jax.ops.segment_prod(x, ids, n)",
    "unsorted_segment_sum": "jax.ops.segment_sum(x, ids, n)",
    "xdivy": "jax.numpy.where(x == 0, 0, x / jax.numpy.where(x == 0, 1, y))",
    "xlog1py": "jax.scipy.special.xlog1py",
    "xlogy": "jax.scipy.special.xlogy",
    "zero_fraction": "jax.numpy.mean(x == 0)",
    "zeta": "jax.scipy.special.zeta",
}
_MATH = _ALIKE | _REDUCTIONS | _RENAMED
_LINALG = {
    "adjoint": "jax.numpy.conj(jax.numpy.matrix_transpose(x))",
    "band_part": (
        "jax.numpy.tril(jax.numpy.triu(x, -lower), upper), without the triu if lower is -1 and without the "
        "tril if upper is -1"
    ),
    "cholesky": "jax.numpy.linalg.cholesky",
    "cross": "jax.numpy.cross",
    "det": "jax.numpy.linalg.det",
    "diag": "jax.numpy.where(jax.numpy.eye(x.shape[-1], dtype=bool), x[..., None], 0)",
    "diag_part": "jax.numpy.diagonal(x, axis1=-2, axis2=-1)",
    "eig": "jax.numpy.linalg.eig",
    "eigh": "jax.numpy.linalg.eigh(x, symmetrize_input=False)",
    "eigvals": "jax.numpy.linalg.eigvals",
    "eigvalsh": "jax.numpy.linalg.eigh(x, symmetrize_input=False)[0]",
    "einsum": "jax.numpy.einsum",
    "expm": "jax.scipy.linalg.expm",
    "eye": "jax.numpy.eye",
    "global_norm": "optax.tree.norm(arrays)",
    "inv": "jax.numpy.linalg.inv",
    "l2_normalize": _RENAMED["l2_normalize"],
    "lstsq": "jax.numpy.linalg.lstsq(a, b)[0]",
    "lu": "jax.lax.linalg.lu(x), whose first and third results are TensorFlow's",
    "matmul": "jax.numpy.matmul",
    "matrix_rank": "jax.numpy.linalg.matrix_rank",
    "matrix_transpose": "jax.numpy.matrix_transpose",
    "matvec": "jax.numpy.matvec",
    "norm": "jax.numpy.linalg.norm(x.ravel(), ord), or jax.numpy.linalg.norm(x, ord, axis)",
    "normalize": "x / norm and norm = jax.numpy.linalg.norm(x, axis=axis, keepdims=True)",
    "pinv": "jax.numpy.linalg.pinv",
    "qr": "jax.numpy.linalg.qr",
    "slogdet": "jax.numpy.linalg.slogdet",
    "solve": "jax.numpy.linalg.solve",
    "sqrtm": "jax.scipy.linalg.sqrtm(x).real, or as it is for complex numbers",
    "svd": "u, s, vt = jax.numpy.linalg.svd(x, full_matrices=False); tf.linalg.svd returns s, u, v",
    "tensor_diag": "jax.numpy.diag(x.ravel()).reshape(x.shape * 2)",
    "tensordot": "jax.numpy.tensordot",
    "trace": "jax.numpy.trace(x, axis1=-2, axis2=-1)",
    "triangular_solve": "jax.scipy.linalg.solve_triangular(a, b, lower=True)",
}
_SIGNAL = {
    **{
        name: f"jax.numpy.fft.{name}"
        for name in ("fft", "fftshift", "ifft", "ifftshift", "irfft", "rfft")
    },
    "dct": "jax.scipy.fft.dct",
    "fft2d": "jax.numpy.fft.fft2",
    "fft3d": "jax.numpy.fft.fftn(x, axes=(-3, -2, -1))",
    "hamming_window": "jax.numpy.hamming(n + 1)[:-1] for an even n, jax.numpy.hamming(n) for an odd n",
    "hann_window": "jax.numpy.hanning(n + 1)[:-1] for an even n, jax.numpy.hanning(n) for an odd n",
    "idct": "jax.scipy.fft.idct(x) * 2 * x.shape[-1], or jax.scipy.fft.idct(x, norm='ortho')",
    "ifft2d": "jax.numpy.fft.ifft2",
    "inverse_stft": "jax.scipy.signal.istft, which takes other arguments",
    "kaiser_window": "jax.numpy.kaiser(n, beta)",
    "stft": "jax.scipy.signal.stft, which takes other arguments",
}
_ALSO_IN_TF = (
    "abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh cos cosh cumsum "
    "divide equal exp floor greater greater_equal less less_equal logical_and logical_not "
    "logical_or maximum minimum multiply negative not_equal pow reduce_all reduce_any "
    "reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum round "
    "scalar_mul sigmoid sign sin sinh sqrt square subtract tan tanh truediv"
)
_LINALG_IN_TF = ("eig", "eigvals", "einsum", "eye", "matmul", "norm", "tensordot")

MATHEMATICS: dict[str, str] = (
    {f"math.{name}": text for name, text in _MATH.items()}
    | {f"linalg.{name}": text for name, text in _LINALG.items()}
    | {f"signal.{name}": text for name, text in _SIGNAL.items()}
    | {name: _MATH[name] for name in _ALSO_IN_TF.split()}
    | {name: _LINALG[name] for name in _LINALG_IN_TF}
    # Of TensorFlow 1, and still written by habit.
    | {
        "ceil": "jax.numpy.ceil",
        "log": "jax.numpy.log",
        "mod": "jax.numpy.mod",
        "rsqrt": "jax.lax.rsqrt",
        "trace": _LINALG["trace"],
    }
)
