"""A real kernel of a notebook: progress as a widget, and what strategies say of the devices they found."""

import re

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.peer("nbclient", "ipykernel")]


def outputs(*cells):
    """Runs cells in a new kernel; returns the outputs of each."""
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    states = notebook.metadata.get("widgets", {}).get(
        "application/vnd.jupyter.widget-state+json", {}
    )
    return [cell.outputs for cell in notebook.cells], states.get("state", {})


def text_of(found):
    return "".join(output.get("text", "") for output in found)


def widgets_of(states, kind):
    """Returns the states of widgets, in the order in which they were made."""
    return [one["state"] for one in states.values() if one["model_name"] == f"{kind}Model"]


DEVICES = """
import stratagem as sg
strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""
LOOP = """
for step in sg.train.progress(range(3), description="epoch 1"):
    pass
for step in sg.train.progress(iter("ab")):
    pass
"""
FIT = """
import numpy as np
with strategy.scope():
    model = sg.keras.Sequential([sg.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((8, 2), np.float32)
model.fit(x, x[:, :1], epochs=2, batch_size=4, validation_data=(x, x[:, :1]))
model.evaluate(x, x[:, :1], batch_size=2)
model.predict(x, batch_size=8)
model.fit(x, x[:, :1], batch_size=4, verbose=2)
"""


@pytest.mark.peer("ipywidgets")
def test_progress_is_a_widget():
    [_, loop, fit], states = outputs(DEVICES, LOOP, FIT)
    assert "steps/s" not in text_of(loop)
    bars = widgets_of(states, "IntProgress")
    texts = [state.get("value", "") for state in widgets_of(states, "Label")]
    shown = [(bar.get("value", 0), bar["max"], bar["bar_style"]) for bar in bars]
    epochs = [(2, 2, "success"), (2, 2, "success")]
    assert shown == [
        (3, 3, "success"),
        (1, 1, "info"),
        *epochs,
        (4, 4, "success"),
        (1, 1, "success"),
    ]
    assert [text for text in texts if text in ("epoch 1", "Epoch 1/2", "Epoch 2/2")] == [
        *("epoch 1", "Epoch 1/2", "Epoch 2/2")
    ]
    assert re.match(
        r"3/3  100 %  .* steps/s  0:00:0", next(t for t in texts if t.startswith("3/3"))
    )
    [first] = [text for text in texts if "val_loss" in text][:1]
    assert re.fullmatch(r"2/2  loss: [\d.e-]+  val_loss: [\d.e-]+", first)
    assert "2/2" in text_of(fit)  # the last one prints a line for each epoch
    assert text_of(fit).count("loss") == 1


HIDE = """
import sys
sys.modules["ipywidgets"] = None  # as if it were not installed
"""


def test_without_ipywidgets_it_is_a_line():
    [_, _, loop], _ = outputs(HIDE, DEVICES, LOOP)
    assert re.search(r"epoch 1: 3/3  100 %", text_of(loop))


def test_a_strategy_says_that_it_found_one_device_and_that_jax_had_started():
    start = "import jax; print(len(jax.devices()))"
    make = "import stratagem as sg; strategy = sg.distribute.MirroredStrategy()"
    [started, first, second], _ = outputs(start, make, make)
    assert text_of(started).strip() == "1"
    assert "one device" in text_of(first)
    assert "JAX" in text_of(first)
    assert text_of(second) == ""  # once
