"""``stratagem.keras`` is Keras with the JAX backend, or an error that says what to do."""

import os
import subprocess
import sys

import pytest


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return done.stdout.strip(), done.stderr


CHOOSES = """
import os, sys
os.environ.pop("KERAS_BACKEND", None)
import stratagem as tf
unloaded = "keras" not in sys.modules
with tf.distribute.OneDeviceStrategy("CPU:0").scope() as strategy:
    from stratagem import keras
    placed = keras.Variable(1.0)
import stratagem.keras
from stratagem.keras import layers
import keras as itself
print(unloaded, keras is itself, stratagem.keras is itself, tf.keras is itself,
      layers is itself.layers, placed.strategy is strategy, "KERAS_BACKEND" not in os.environ,
      itself.config.backend())
"""
IMPORTED_BEFORE = """
import keras
import stratagem as sg
with sg.distribute.OneDeviceStrategy("CPU:0").scope() as strategy:
    print(keras.Variable(1.0).strategy is strategy)
"""
ANOTHER_BACKEND = """
import keras
import stratagem as sg
plain = keras.Variable(1.0)
def ask():
    return sg.keras
def create():
    with sg.distribute.OneDeviceStrategy("CPU:0").scope():
        keras.Variable(1.0)
for use in (ask, create):
    try:
        use()
    except sg.errors.KerasBackendError as error:
        print("'numpy'" in str(error) and "KERAS_BACKEND=jax" in str(error))
"""
NNX = """
import os
os.environ["KERAS_NNX_ENABLED"] = "true"
import stratagem as sg
print(type(sg.keras.Variable(1.0)).__name__)
with sg.distribute.OneDeviceStrategy("CPU:0").scope():
    try:
        sg.keras.Variable(1.0)
    except NotImplementedError as error:
        print("KERAS_NNX_ENABLED" in str(error))
"""
TOLD_OTHERWISE = """
import sys
import stratagem as sg
try:
    sg.keras
except RuntimeError as error:
    print("KERAS_BACKEND=torch" in str(error), "keras" in sys.modules)
"""
NOT_INSTALLED = """
import sys
sys.modules["keras"] = None
import stratagem as sg
for use in (lambda: sg.keras, lambda: sg.train.ElasticFit):
    try:
        use()
    except ImportError as error:
        print("pip install 'keras>=" in str(error), "stratagem[keras]" in str(error))
"""


@pytest.mark.parametrize(
    ("program", "backend", "printed"),
    [
        pytest.param(CHOOSES, "", " ".join(["True"] * 7 + ["jax"]), id="chooses_jax"),
        pytest.param(IMPORTED_BEFORE, "jax", "True", id="imported_before", marks=pytest.mark.slow),
        pytest.param(NNX, "jax", "Variable\nTrue", id="nnx", marks=pytest.mark.slow),
        pytest.param(
            ANOTHER_BACKEND, "numpy", "True\nTrue", id="another_backend", marks=pytest.mark.slow
        ),
        pytest.param(
            TOLD_OTHERWISE, "torch", "True False", id="told_otherwise", marks=pytest.mark.slow
        ),
        pytest.param(NOT_INSTALLED, "", "True True\nTrue True", id="not_installed"),
    ],
)
def test_door(program, backend, printed):
    assert run(program, KERAS_BACKEND=backend)[0] == printed
