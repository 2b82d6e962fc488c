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
    ("linalg.sqrtm", {"x": np.diag([4.0, 9.0])}, np.diag([2.0, 3.0])),
    ("trace", {"x": np.stack([MATRIX, 2 * MATRIX])}, [7, 14]),
    ("signal.idct", {"x": np.array([1.0, 0.0])}, [1, 1]),
    ("signal.hann_window", {"n": 4}, [0, 0.5, 1, 0.5]),
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
