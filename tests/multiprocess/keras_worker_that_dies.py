"""A worker that trains a Keras model; worker 1 is killed in it. Prints what it was told, as JSON."""

import json
import os
import signal

import numpy as np

import stratagem as sg

keras = sg.keras
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=60)
strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

seen = []


class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append(self.model.get_weights())
        if batch == 2 and me == 1:
            os.kill(os.getpid(), signal.SIGKILL)


x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
try:
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, verbose=0, callbacks=[Die()])
except sg.errors.UnavailableError as error:
    kept = all(np.array_equal(a, b) for a, b in zip(model.get_weights(), seen[-1], strict=True))
    print(json.dumps({"text": str(error), "steps": len(seen), "kept": kept}))
