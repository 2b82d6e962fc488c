"""What the errors for TensorFlow's names say to write gives TensorFlow's numbers."""

import contextlib
import re

import jax
import numpy as np
import optax
import pytest

from stratagem._src.core.tensorflow_names import TRANSLATIONS

INF = np.inf
MATRIX = np.array([[4.0, 1.0], [2.0, 3.0]], np.float32)
# The last of each are the numbers that TensorFlow computes.
CASES = [
    (
        "linalg.band_part",
        {"x": np.ones((3, 3)), "lower": 1, "upper": 0},
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]],
    ),
    ("linalg.triangular_solve", {"a": MATRIX, "b": np.array([[4.0], [5.0]])}, [[1], [1]]),
    (
        "linalg.diag",
        {"x": np.array([[1.0, INF], [3.0, 4.0]])},
        [[[1, 0], [0, INF]], [[3, 0], [0, 4]]],
    ),
    ("linalg.tensor_diag", {"x": np.array([[1.0, 2.0]])}, np.diag([1.0, 2.0]).reshape(1, 2, 1, 2)),
    ("linalg.eigvalsh", {"x": np.array([[1.0, 9.0], [0.0, 2.0]])}, [1, 2]),
    ("linalg.lstsq", {"a": MATRIX, "b": np.array([[5.0], [5.0]])}, [[1], [1]]),
    ("linalg.norm", {"x": MATRIX, "ord": 1}, 10),
    ("linalg.sqrtm", {"x": np.diag([4.0, 9.0])}, np.diag([2.0, 3.0])),
    ("trace", {"x": np.stack([MATRIX, 2 * MATRIX])}, [7, 14]),
    (
        "math.l2_normalize",
        {"x": np.array([[0.0, 0.0], [3.0, 4.0]]), "axis": 1},
        [[0, 0], [0.6, 0.8]],
    ),
    ("nn.l2_normalize", {"x": np.array([0.0, 0.0]), "axis": 0}, [0, 0]),
    ("math.in_top_k", {"predictions": np.ones((1, 4)), "targets": np.array([3]), "k": 2}, [True]),
    (
        "histogram_fixed_width",
        {"x": np.array([-1.0, 0.5, 5.0]), "low": 0.0, "high": 2.0, "nbins": 2},
        [2, 1],
    ),
    ("where", {"condition": np.array([True, False]), "x": 1, "y": 2}, [1, 2]),
    ("signal.idct", {"x": np.array([1.0, 0.0])}, [1, 1]),
    ("signal.hann_window", {"n": 4}, [0, 0.5, 1, 0.5]),
    (
        "image.resize",
        {"x": np.arange(8.0).reshape(8, 1, 1), "shape": (2, 1, 1)},
        [[[1.5]], [[5.5]]],
    ),
    (
        "image.rot90",
        {"x": np.arange(4.0).reshape(1, 2, 2, 1)},
        np.array([[1.0, 3.0], [0.0, 2.0]]).reshape(1, 2, 2, 1),
    ),
    ("train.ExponentialMovingAverage", {"new": 2.0, "average": 1.0, "decay": 0.9}, 1.1),
]


def code_of(translation):
    """Returns the code that a translation begins with; a remark may follow."""
    ends = [found.start() for found in re.finditer(r", |; | for an |$", translation)]
    for end in reversed(ends):
        with contextlib.suppress(SyntaxError):
            return compile(translation[:end], translation, "eval")
    pytest.fail(f"no code in {translation!r}")


@pytest.mark.parametrize(("name", "values", "expected"), CASES, ids=[case[0] for case in CASES])
def test_translation_gives_the_numbers_of_tensorflow(name, values, expected):
    values = {
        k: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in values.items()
    }
    found = eval(code_of(TRANSLATIONS[name]), {"jax": jax, "optax": optax, **values})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [[1, 7, 3], [4, 5, 8]]),
        ("max", [[1, 5, 3], [4, 5, 6]]),
        ("min", [[1, 2, 3], [4, 5, 2]]),
        ("sub", [[1, -3, 3], [4, 5, 4]]),
        ("update", [[1, 5, 3], [4, 5, 2]]),
    ],
)
def test_scattering_takes_a_row_of_indices_for_each_number(name, expected):
    values = {
        "x": jax.numpy.array([[1, 2, 3], [4, 5, 6]]),
        "indices": np.array([[0, 1], [1, 2]]),
        "updates": np.array([5, 2]),
    }
    found = eval(code_of(TRANSLATIONS[f"tensor_scatter_nd_{name}"]), {"jax": jax, **values})
    np.testing.assert_array_equal(found, expected)


def test_singular_values():
    scope = {"jax": jax, "x": np.diag([3.0, 2.0, 1.0])[:, :2]}
    exec(TRANSLATIONS["linalg.svd"].partition(";")[0], scope)
    np.testing.assert_allclose(scope["s"], [3.0, 2.0])
    assert scope["u"].shape == (3, 2)
