"""Seconds until the first training step of Keras models is done, from the start of Python.

Import, model and first step of ``fit``, each network in a process of its own: with Stratagem, cold (empty
compilation cache) and warm, and with Keras on TensorFlow and torch where ``--tensorflow-python`` and
``--torch-python`` name interpreters that have them. The rounds of all sides are interleaved; the median of
wall time and of CPU time is shown, because other work on the machine changes the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

NETWORKS = {
    "digits": """
    inputs, width = np.zeros((32, 64), "float32"), 10
    layers = [keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
""",
    "cnn": """
    inputs, width = np.zeros((32, 28, 28, 1), "float32"), 10
    layers = [keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.BatchNormalization(),
              keras.layers.MaxPooling2D(), keras.layers.Conv2D(64, 3, activation="relu"),
              keras.layers.BatchNormalization(), keras.layers.MaxPooling2D(), keras.layers.Flatten(),
              keras.layers.Dropout(0.2), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
""",
    "text": """
    inputs, width = np.zeros((32, 64), "int32"), 2
    layers = [keras.layers.Embedding(1000, 64), keras.layers.LSTM(64), keras.layers.Dense(2)]
""",
}
PROGRAM = """
import time
began, cpu = time.perf_counter(), time.process_time()
import contextlib, json
import numpy as np
{imports}
imported = time.perf_counter() - began
with {scope}:
    {network}
    model = keras.Sequential(layers)
    model.build((None, *inputs.shape[1:]))
    built = time.perf_counter() - began
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
model.fit(inputs, np.zeros(32, "int32"), batch_size=32, verbose=0)
print(json.dumps([imported, built, time.perf_counter() - began, time.process_time() - cpu]))
"""
OURS = ("import stratagem as sg\nimport keras", 'sg.distribute.MirroredStrategy(["CPU:0"]).scope()')
KERAS = ("import keras", "contextlib.nullcontext()")
COLUMNS = ("import", "model", "first step", "CPU")


def measure(python: str, backend: str, network: str, cache: str) -> list[float]:
    """Returns the seconds from the start to the end of each part, and the CPU seconds of all."""
    imports, scope = OURS if backend == "jax" else KERAS
    program = PROGRAM.format(imports=imports, scope=scope, network=NETWORKS[network].strip())
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "TF_CONFIG")}
    environment |= {"KERAS_BACKEND": backend, "XDG_CACHE_HOME": cache, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{backend} failed for {network}:\n{done.stderr}")
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tensorflow-python")
    parser.add_argument("--torch-python")
    options = parser.parse_args()
    sides = {"stratagem cold": (sys.executable, "jax"), "stratagem warm": (sys.executable, "jax")}
    if options.tensorflow_python:
        sides["tensorflow"] = (options.tensorflow_python, "tensorflow")
    if options.torch_python:
        sides["torch"] = (options.torch_python, "torch")
    print(f"{'network':<10}{'side':<16}" + "".join(f"{name:>12}" for name in COLUMNS))
    for network in NETWORKS:
        found: dict[str, list[list[float]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as cache:  # of the cold run, and warm after it
                for side, (python, backend) in sides.items():
                    found[side].append(measure(python, backend, network, cache))
        for side, rows in found.items():
            medians = map(statistics.median, zip(*rows, strict=True))
            print(f"{network:<10}{side:<16}" + "".join(f"{seconds:>12.2f}" for seconds in medians))


if __name__ == "__main__":
    main()
