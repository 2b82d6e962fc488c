"""Keras' ``fit`` that goes on when workers are lost; arguments as of ``elastic_worker.py``."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import stratagem as sg

folder, epochs, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
strategy = sg.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id or 0
events = (folder / f"worker-{task}-{os.getpid()}.jsonl").open("w", buffering=1)


def note(event, **what):
    events.write(json.dumps({"event": event, "time": time.time(), "task": task, **what}) + "\n")


keras = sg.keras
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
y = (x @ np.array([[1.0], [2.0], [3.0], [4.0]])).astype(np.float32)
dataset = sg.data.Dataset.from_tensor_slices((x, y)).batch(12)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])


class Notes(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause)

    def on_epoch_end(self, epoch, logs=None):
        note("step", step=epoch, loss=logs["loss"], workers=strategy.num_replicas_in_sync)
        note("epoch", epoch=epoch, counted=[1], w=self.model.get_weights()[0].ravel().tolist())
        self.model.stop_training = (folder / "enough").exists()


@sg.train.elastic(strategy)
def train(loop):
    callbacks = [Notes(), sg.train.ElasticFit(loop)]
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=callbacks)


note("start", workers=strategy.num_replicas_in_sync)
train()
note("end")
