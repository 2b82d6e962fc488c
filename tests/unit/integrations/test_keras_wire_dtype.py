"""Keras' own training step under a strategy whose gradients travel in another dtype."""

import keras
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.errors import UnsupportedError


@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
def test_training_is_refused_and_evaluation_is_not(method):
    options = sg.distribute.experimental.CommunicationOptions(dtype="bfloat16")
    strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    assert strategy.num_replicas_in_sync > 1
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = model.get_weights()
    x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    with pytest.raises(UnsupportedError, match=r"in their own dtype.*'bfloat16'"):
        getattr(model, method)(x, y)
    assert np.isfinite(model.evaluate(x, y, verbose=0))
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
