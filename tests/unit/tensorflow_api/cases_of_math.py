"""``tf.math``, and what of it is in ``tf`` itself."""

import numpy as np
from compared_cases import case

F = np.array([[0.5, -0.25, 0.75], [0.125, 0.9, -0.6]], np.float32)
POSITIVE = np.array([0.5, 1.25, 3.0], np.float32)
OTHER = np.array([[2.0, -0.5, 1.0], [-3.0, 0.25, 4.0]], np.float32)
V = np.array([3.0, -1.0, 2.0], np.float32)
I = np.array([[1, -2, 3], [5, 4, -6]], np.int32)  # noqa: E741
J = np.array([[2, 3, -2], [3, 3, 4]], np.int32)
B = np.array([[True, False, True], [False, False, True]])
C = np.array([1 + 2j, -3 + 0.5j], np.complex64)
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, -2.5, 0.5], np.float32)
# Where a derivative jumps, frameworks choose different ones.
KINKS = np.array([-2.0, -1.0, 0.0, -0.0, 1.0, 6.0, 7.0], np.float32)
EMPTY = np.zeros((0, 3), np.float32)
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7

_SMOOTH = (
    "acos asin asinh atan atanh cos cosh exp expm1 log1p log_sigmoid sigmoid sin sinh softplus softsign "
    "square tan tanh erf erfc erfinv bessel_i0e bessel_i1e negative"
)
_ON_POSITIVE = "log sqrt rsqrt reciprocal reciprocal_no_nan lgamma digamma bessel_i0 bessel_i1"
_ON_ODD = (
    "abs ceil floor rint round sign is_finite is_inf is_nan sqrt reciprocal_no_nan exp tanh sigmoid"
)
_BINARY = (
    "add subtract multiply divide truediv divide_no_nan maximum minimum squared_difference floormod atan2 "
    "xdivy multiply_no_nan"
)
_BINARY_OF_INTEGERS = (
    "add subtract multiply divide truediv floordiv floormod maximum minimum squared_difference equal "
    "not_equal greater greater_equal less less_equal divide_no_nan"
)
_REDUCTIONS = "reduce_sum reduce_mean reduce_max reduce_min reduce_prod"
_REDUCTIONS_OF_FLOATS = "reduce_std reduce_variance reduce_logsumexp reduce_euclidean_norm"

CASES = [
    *[case(f"math.{name}", F, gradient=True) for name in _SMOOTH.split()],
    *[case(f"math.{name}", POSITIVE, gradient=True) for name in _ON_POSITIVE.split()],
    *[case(f"math.{name}", ODD) for name in _ON_ODD.split()],
    *[
        case(f"math.{name}", I)
        for name in [
            "abs",
            "exp",
            "sqrt",
            "round",
            "sign",
            "square",
            "negative",
            "floor",
            "is_nan",
            "tanh",
        ]
    ],
    *[
        case(f"math.{name}", C)
        for name in ["abs", "angle", "conj", "real", "imag", "exp", "square", "sqrt"]
    ],
    case("math.real", F),
    case("math.imag", F),
    case("abs", F, gradient=True),
    case("abs", -3),
    case("math.acosh", np.array([1.5, 3.0], np.float32), gradient=True),
    case("math.erfcinv", np.array([0.5, 1.5], np.float32)),
    case("math.ndtri", np.array([0.2, 0.9], np.float32)),
    case("math.logical_not", B),
    case("math.logical_not", 1),
    *[case(f"math.{name}", F, OTHER, gradient=True) for name in _BINARY.split()],
    *[case(f"math.{name}", I, J) for name in _BINARY_OF_INTEGERS.split()],
    case("add", F, I),
    case("add", F, 1),
    case("add", I, 1.5),
    case("add", F, V),
    case("add", F, CUBE),
    case("add", B, B),
    case("multiply", EMPTY, 2.0),
    case("subtract", np.array([1], np.uint8), np.array([2], np.uint8)),
    case("maximum", F, 0),
    case("maximum", 0, F),
    case("minimum", I, 2.5),
    case("maximum", ODD, 0.0),
    case("divide", 3, 2),
    case("truediv", np.array([3], np.int8), np.array([2], np.int8)),
    case("math.floordiv", F, OTHER),
    case("math.floordiv", I, 0),
    case("math.floordiv", V, 0.0),
    case("truncatediv", I, J),
    case("truncatemod", I, J),
    case("realdiv", F, OTHER),
    case("pow", POSITIVE, 2, gradient=True),
    case("pow", 2, V),
    case("pow", POSITIVE, V, gradient=True),
    case("pow", I, 2),
    case("pow", 2, -1),
    case("scalar_mul", 2, F, gradient=True),
    case("math.divide_no_nan", V, np.array([0.0, 2.0, 0.0], np.float32), gradient=True),
    case("math.divide_no_nan", 1, 0),
    case("math.multiply_no_nan", np.array([np.inf, np.nan], np.float32), 0.0),
    case(
        "math.xlogy",
        np.array([0.0, 2.0], np.float32),
        np.array([0.0, 3.0], np.float32),
        gradient=True,
    ),
    case(
        "math.xlog1py",
        np.array([0.0, 2.0], np.float32),
        np.array([-1.0, 3.0], np.float32),
        gradient=True,
    ),
    case("math.xdivy", np.array([0.0, 2.0], np.float32), np.array([0.0, 3.0], np.float32)),
    case("math.nextafter", V, 9.0),
    case("equal", F, F),
    case("equal", F, 0.5),
    case("equal", F, I),
    case("equal", "a", "b"),
    case("not_equal", B, True),
    case("equal", np.float32("nan"), np.float32("nan")),
    case("greater", F, OTHER),
    case("less", I, 2),
    case("less", C, C),
    case("logical_and", B, True),
    case("logical_or", B, False),
    case("math.logical_xor", B, True),
    case("logical_and", True, 1),
    case("add_n", [F, F, OTHER], gradient=True),
    case("add_n", [F, V]),
    case("add_n", []),
    case("math.polyval", [1.0, 0.0, 2.0], V, gradient=True),
    *[case(name, CUBE, axis=1, gradient=True) for name in _REDUCTIONS.split()],
    *[case(name, CUBE, axis=[0, -1], keepdims=True) for name in _REDUCTIONS.split()],
    *[case(name, I) for name in _REDUCTIONS.split()],
    *[case(name, EMPTY) for name in _REDUCTIONS.split()],
    *[case(name, B) for name in _REDUCTIONS.split()],
    *[case(f"math.{name}", CUBE, axis=1, gradient=True) for name in _REDUCTIONS_OF_FLOATS.split()],
    *[case(f"math.{name}", CUBE, 2, True) for name in _REDUCTIONS_OF_FLOATS.split()],
    case("math.reduce_std", I),
    case("reduce_logsumexp", np.array([-np.inf, -np.inf], np.float32)),
    case("reduce_mean", [1, 2]),
    case("reduce_mean", np.array([-3, -4], np.int32)),
    case("reduce_mean", np.array([250, 251], np.uint8)),
    case("reduce_sum", np.array([250, 251], np.uint8)),
    case("reduce_sum", np.array([1, 2], np.int64)),
    case("reduce_sum", CUBE, axis=3),
    case("reduce_sum", CUBE, axis=[]),
    case("reduce_sum", np.float32(3.0)),
    case("reduce_max", np.zeros((0,), np.int32)),
    case("reduce_max", np.array([1.0, 1.0, 0.0], np.float32), gradient=True),
    case("reduce_max", ODD),
    case("reduce_all", B, axis=1),
    case("reduce_any", B, axis=0, keepdims=True),
    case("reduce_all", [1, 0]),
    case("reduce_all", np.zeros((0,), bool)),
    case("math.count_nonzero", I, axis=0),
    case("math.count_nonzero", I, keepdims=True, dtype="int32"),
    case("math.zero_fraction", np.array([0.0, 1.0, 0.0], np.float32)),
    case("argmax", F),
    case("argmax", F, axis=1, output_type="int32"),
    case("argmin", I, axis=-1),
    case("argmax", np.array([1, 3, 3], np.int32)),
    case("argmax", F, axis=2),
    case("cumsum", CUBE, axis=1, gradient=True),
    case("cumsum", I, axis=1, exclusive=True, reverse=True),
    case("cumsum", CUBE, axis=-1, reverse=True),
    case("math.cumprod", F, axis=1, gradient=True),
    case("math.cumprod", F, axis=1, exclusive=True),
    case("math.cumulative_logsumexp", F, axis=1),
    case("math.cumulative_logsumexp", F, axis=1, exclusive=True, reverse=True),
    case("math.bincount", [1, 1, 3]),
    case("math.bincount", [1, 1, 3], minlength=6),
    case("math.bincount", [1, 1, 3], maxlength=2),
    case("math.bincount", [1, 1, 3], weights=[0.5, 1.0, 2.0]),
    case("math.bincount", [1, 1, 3], binary_output=True),
    case("math.confusion_matrix", [1, 0, 2], [1, 1, 2]),
    case("math.confusion_matrix", [1, 0], [1, 1], num_classes=3, weights=[2, 3]),
    case("math.is_non_decreasing", [1, 1, 2]),
    case("math.is_strictly_increasing", [1, 1, 2]),
    case("math.top_k", F, 2, gradient=True),
    case("math.top_k", I, k=1),
    case("math.top_k", F, 4),
    case(
        "math.in_top_k",
        [0, 1, 3],
        np.array([[0.1, 0.9, 0.2], [0.3, 0.3, 0.1], [1, 2, 3]], np.float32),
        1,
    ),
    case("math.invert_permutation", [2, 0, 1]),
    case("math.l2_normalize", F, axis=1, gradient=True),
    case("math.l2_normalize", np.zeros(3, np.float32)),
    case("math.l2_normalize", I),
    case("math.betainc", np.float32(1.5), np.float32(2.5), np.array([0.3, 0.8], np.float32)),
    case("math.igamma", np.float32(1.5), np.array([0.3, 0.8], np.float32)),
    case("math.igammac", np.float32(1.5), np.array([0.3, 0.8], np.float32)),
    case("math.lbeta", POSITIVE),
    case("math.zeta", np.float32(2.5), POSITIVE),
    case("math.polygamma", np.float32(2.0), POSITIVE),
    case("math.segment_sum", F, [0, 2]),
    case("math.segment_mean", CUBE, [0, 0], gradient=True),
    case("math.segment_max", V, [0, 0, 2]),
    case("math.segment_min", V, [0, 0, 2]),
    case("math.segment_prod", V, [0, 0, 2]),
    case("math.segment_sum", V, [1, 0, 2]),
    case("math.unsorted_segment_sum", V, [1, -1, 1], 3, gradient=True),
    case("math.unsorted_segment_mean", V, [1, 0, 1], 3, gradient=True),
    case("math.unsorted_segment_max", V, [1, 0, 1], 3),
    case("math.unsorted_segment_min", I, [1, 0], 3),
    case("math.unsorted_segment_prod", V, [1, 0, 1], 3),
    case("math.unsorted_segment_sqrt_n", V, [1, 0, 1], 3),
    case("math.unsorted_segment_sum", V, [1, 0, 3], 3),
    case("math.approx_max_k", V, 2),
    case("math.softmax", F, gradient=True),
    case("math.log_softmax", F, axis=0, gradient=True),
    case("math.softmax", I),
    *[case(name, KINKS, gradient=True) for name in ("abs", "square", "math.softplus")],
    *[case(name, KINKS, KINKS[::-1], gradient=True) for name in ("maximum", "minimum")],
    *[case(name, KINKS, np.zeros(7, np.float32), gradient=True) for name in ("maximum", "minimum")],
    case("maximum", np.zeros((), np.float32), KINKS, gradient=True),
    case("clip_by_value", KINKS, 0.0, 6.0, gradient=True),
]
