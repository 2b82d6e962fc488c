"""A worker whose main thread ends while another thread trains."""

import threading

import jax.numpy as jnp

import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
begun = threading.Event()


@sg.function
def step(x):
    return strategy.reduce("SUM", x, axis=None)


def train():
    x = strategy.experimental_distribute_values_from_function(lambda _: jnp.ones(3))
    while True:
        step(x)
        begun.set()


threading.excepthook = lambda _: None  # it is told that the process ends
threading.Thread(target=train, daemon=True).start()
begun.wait()
print("ends")
