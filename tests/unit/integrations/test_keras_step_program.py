"""What XLA gets of a Keras step."""

import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, keras, mirrored, scope_of

from stratagem._src.integrations.keras import step_program

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)


def test_steps_are_rewritten_for_the_platform(monkeypatch):
    texts = []
    compile_step = step_program._Jitted.compile

    def note(jitted, state, batch):
        texts.append(jitted.jitted.lower(state, batch).as_text())
        compile_step(jitted, state, batch)

    monkeypatch.setattr(step_program._Jitted, "compile", note)
    with scope_of(mirrored(2)):
        model = keras.Sequential([keras.layers.Input((3, 6)), keras.layers.Dense(5)])
        model.compile(optimizer="sgd", loss="mse")
    for _ in range(2):
        model.fit(np.ones((4, 3, 6)), np.ones((4, 3, 5)), batch_size=4, verbose=0)
        monkeypatch.setenv("STRATAGEM_REWRITES", "0")
        model.compile(optimizer="sgd", loss="mse")
    assert ["stablehlo.transpose" in text for text in texts] == [False, True]
