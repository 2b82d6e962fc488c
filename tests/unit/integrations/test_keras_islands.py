"""Islands in Keras ``fit``, through the callback."""

import numpy as np
import pytest

import stratagem as sg


def test_fit_twice_and_after_an_interrupt():
    keras = sg.keras
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    islands = sg.distribute.experimental.LocalUpdates(strategy, sync_every=2)
    x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)

    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    def fit(*more):
        callbacks = [islands.keras_callback(), *more]
        model.fit(x, y, batch_size=2, epochs=1, verbose=0, callbacks=callbacks)

    fit()
    assert islands.num_steps == 4
    fit()
    assert islands.num_steps == 8
    with pytest.raises(KeyboardInterrupt):
        fit(Interrupted())
    fit()
    assert islands.num_steps == 13
