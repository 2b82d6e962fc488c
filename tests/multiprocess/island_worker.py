"""A small training on islands; notes what it sees in a file of its own.

Arguments: the folder for the files, the number of steps (until there is a file ``enough`` if 0), after how
many steps islands average, and ``loop`` or ``fit``.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import optax

import stratagem as sg

folder, steps, sync_every, kind = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
strategy = sg.distribute.MultiWorkerMirroredStrategy()
island, worker = int(os.environ["STRATAGEM_ISLAND"]), strategy.cluster_resolver.task_id or 0
notes = (folder / f"island-{island}-{worker}-{os.getpid()}.jsonl").open("w", buffering=1)

FEATURES, ROWS = 6, 8  # rows of one island in a step
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 2 * ROWS, FEATURES)).astype(np.float32)
y = (x @ np.arange(FEATURES, dtype=np.float32) + rng.normal(size=x.shape[:2])).astype(np.float32)
mine = slice(island * ROWS, (island + 1) * ROWS)  # of each batch of both islands


def note(**what):
    notes.write(json.dumps({"time": time.time(), "pid": os.getpid(), **what}) + "\n")


def train_by_loop():
    with strategy.scope():
        w = sg.Variable(np.zeros(FEATURES, np.float32))
    optimizer = sg.train.Optimizer(optax.sgd(0.05))
    islands = sg.distribute.experimental.LocalUpdates(
        strategy, [w], sync_every=sync_every, timeout_seconds=60
    )

    def replica_step(inputs, targets):
        def loss():
            return sg.nn.compute_average_loss(
                (inputs @ w.value() - targets) ** 2, global_batch_size=ROWS
            )

        _, gradients = sg.value_and_grad(loss, [w])()
        optimizer.apply(gradients, [w])

    @sg.function
    def step(inputs, targets):
        strategy.run(replica_step, args=(inputs, targets))

    def of_this_worker(context):
        position = context.replica_id_in_sync_group
        rows = ROWS // strategy.num_replicas_in_sync
        return slice(position * rows, (position + 1) * rows)

    with islands:
        note(event="joined", num_steps=islands.num_steps, w=np.asarray(w).tolist())
        while islands.num_steps < steps or (steps == 0 and not (folder / "enough").exists()):
            batch = islands.num_steps % len(x)
            distributed = [
                strategy.experimental_distribute_values_from_function(
                    lambda context, rows=rows: rows[of_this_worker(context)]
                )
                for rows in (x[batch, mine], y[batch, mine])
            ]
            step(*distributed)
            islands.step()
            note(event="step", num_steps=islands.num_steps, islands=islands.metrics["islands"])
            time.sleep(0.02 if steps == 0 else 0)
    note(event="end", w=np.asarray(w).tolist(), metrics=islands.metrics, round=islands.round)


def train_by_fit():
    keras = sg.keras
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    islands = sg.distribute.experimental.LocalUpdates(strategy, sync_every=sync_every)
    rows, targets = x[:steps, mine].reshape(-1, FEATURES), y[:steps, mine].reshape(-1, 1)
    dataset = sg.data.Dataset.from_tensor_slices((rows, targets)).batch(ROWS)
    model.fit(dataset, epochs=1, verbose=0, callbacks=[islands.keras_callback()])
    w = np.asarray(model.get_weights()[0])[:, 0]
    note(event="end", w=w.tolist(), metrics=islands.metrics, round=islands.round)


train_by_loop() if kind == "loop" else train_by_fit()
