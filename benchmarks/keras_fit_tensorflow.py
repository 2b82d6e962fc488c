"""The models of ``keras_fit.py`` under TensorFlow's MirroredStrategy; run by that file.

Arguments: the model's name, the number of virtual CPU devices, the number of rounds. Prints the median
seconds of a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from keras_models import STEPS, fit, make_data, make_model


def main() -> None:
    name, num_replicas, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(num_replicas)]
    tf.config.set_logical_device_configuration(cpu, logical)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        model = make_model(name)
    data = make_data(name, num_replicas)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        fit(model, data, num_replicas)
        times.append((time.perf_counter() - start) / STEPS)
    print(json.dumps(statistics.median(times[1:])))


if __name__ == "__main__":
    main()
