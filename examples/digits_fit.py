"""Trains on handwritten digits with Keras' ``compile`` and ``fit``.

Run it with ``python examples/digits_fit.py``. The model is created in the strategy's scope; everything else
is Keras as it is. ``stratagem run --workers 2 examples/digits_fit.py`` trains it in two processes.
"""

from __future__ import annotations

import argparse
import time

from digits_data import load_digits

import stratagem as sg


def create_model() -> sg.keras.Model:
    """Returns a network that gives each digit a score."""
    model = sg.keras.Sequential(
        [
            sg.keras.Input((64,)),
            sg.keras.layers.Dense(128, activation="relu"),
            sg.keras.layers.Dense(64, activation="relu"),
            sg.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=sg.keras.optimizers.Adam(2e-3),
        loss=sg.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Trains and tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of virtual CPU devices")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="for all replicas together")
    flags = parser.parse_args()

    started = time.perf_counter()
    # A launcher: stratagem run, torchrun, mpirun, Slurm, ... Without one, virtual devices for this example.
    launched = sg.distribute.cluster_resolver.resolve_cluster().resolver is not None
    if launched:
        strategy = sg.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(flags.devices)])
    print(f"{strategy.num_replicas_in_sync} replicas, {strategy}")
    sg.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = create_model()

    train_digits, test_digits = map(sg.data.Dataset.from_tensor_slices, load_digits())
    train_batches = train_digits.shuffle(2000, seed=1).batch(flags.batch_size)
    test_batches = test_digits.batch(flags.batch_size)
    model.fit(train_batches, epochs=flags.epochs, validation_data=test_batches, verbose=2)
    _, accuracy = model.evaluate(test_batches, verbose=0)
    print(f"test accuracy {accuracy:.1%}")
    print(f"{time.perf_counter() - started:.1f} seconds")


if __name__ == "__main__":
    main()
