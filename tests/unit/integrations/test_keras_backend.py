"""Which backend Keras gets when a program imports it after the library."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("keras")
pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import os
before = os.environ.get("KERAS_BACKEND")
import stratagem as sg
import keras
assert os.environ.get("KERAS_BACKEND") == before
print(keras.config.backend())
if keras.config.backend() == "jax":
    assert sg.keras is keras
"""


@pytest.mark.parametrize(
    ("chosen", "backend"), [(None, "jax"), ("", "jax"), ("numpy", "numpy")], ids=str
)
def test_keras_gets_jax_unless_another_backend_is_chosen(chosen, backend, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment |= {"KERAS_HOME": str(tmp_path)}  # Keras writes its default there
    if chosen is not None:
        environment["KERAS_BACKEND"] = chosen
    (tmp_path / "keras.json").write_text('{"backend": "tensorflow"}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout.strip() == backend, done.stderr
