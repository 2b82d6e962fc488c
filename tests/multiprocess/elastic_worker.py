"""A small training that goes on when workers are lost; notes what it sees in a file of its own.

Arguments: the folder for the files, how many epochs at most, and for how many seconds a step pauses.
It ends after the epoch in which a worker finds a file ``enough`` in the folder. One more argument may say
for how many seconds workers wait for each other, or "parts": then each worker has a part of the weights
and of the optimizer's state; or "rules": then each of the three devices of a worker has; or "saves": then
all is saved after every epoch, in the folder ``saved``, and a worker that finds a file ``die`` in the other
folder is killed while it writes; or "resumes": then all and the place in the loops are saved after every
third step, and a job that is started again goes on there.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg
from stratagem._src.checkpoint.format.array_store import ArrayWriter

# Two, three and four workers divide a batch evenly, and run one compiled step; five do not.
ROWS, BATCH = 48, 12

folder, epochs, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
more = sys.argv[4] if len(sys.argv) > 4 else None
in_parts, saves, resumes = more == "parts", more == "saves", more == "resumes"
rules = sg.distribute.experimental.ShardingRules({"w": ("fsdp",)}, axes={"fsdp": 3})
strategy = sg.distribute.MultiWorkerMirroredStrategy(
    sharding_rules=rules if more == "rules" else None,
    communication_options=sg.distribute.experimental.CommunicationOptions(
        timeout_seconds=None if more is None or more.isalpha() else float(more)
    ),
)
task = strategy.cluster_resolver.task_id or 0
events = (folder / f"worker-{task}-{os.getpid()}.jsonl").open("w", buffering=1)


compiled = []


class Compilations(logging.Handler):
    def emit(self, record):
        if record.msg.startswith("Writing"):
            compiled.append(record.args[0])


logging.getLogger("jax._src.compilation_cache").addHandler(Compilations())
logging.getLogger("jax._src.compilation_cache").setLevel(logging.DEBUG)


def note(event, **what):
    events.write(json.dumps({"event": event, "time": time.time(), "task": task, **what}) + "\n")


x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
y = (x @ np.array([1.0, 2.0, 3.0])).astype(np.float32)
rows = sg.data.Dataset.from_tensor_slices((x, y, np.arange(ROWS)))
dataset = rows.shuffle(ROWS, seed=7).batch(BATCH)
block = (
    sg.distribute.experimental.FullySharded(min_size=1) if in_parts else contextlib.nullcontext()
)
with strategy.scope(), block:
    w = sg.Variable(np.zeros(3, np.float32), name="w")
    optimizer = sg.train.Optimizer(optax.adam(0.05))
    counted = sg.Variable(
        np.zeros(ROWS, np.int32),
        trainable=False,
        synchronization=sg.VariableSynchronization.ON_READ,
        aggregation=sg.VariableAggregation.SUM,
    )


def replica_step(batch):
    inputs, targets, numbers = batch
    counted.assign_add(jnp.zeros(ROWS, jnp.int32).at[numbers].add(1))

    def loss_of_batch():
        errors = jnp.square(inputs @ w - targets)
        return sg.nn.compute_average_loss(errors, global_batch_size=BATCH)

    loss, gradients = sg.value_and_grad(loss_of_batch, [w])()
    optimizer.apply_gradients(zip(gradients, [w], strict=True))
    return loss


@sg.function
def step(batch):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)


def is_enough():
    """Returns whether a worker was told that it is; all get the same answer."""
    told = strategy.run(lambda: jnp.asarray(float((folder / "enough").exists())))
    return float(strategy.reduce("SUM", told, axis=None)) > 0


finish_writing = ArrayWriter.finish


def finish_or_die(writer):
    if (folder / "die").exists() and task == 1:
        (folder / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return finish_writing(writer)


ArrayWriter.finish = finish_or_die
checkpoint = sg.train.Checkpoint(w=w, optimizer=optimizer, counted=counted)
manager = sg.train.CheckpointManager(checkpoint, folder / "saved", max_to_keep=2)


@sg.train.elastic(strategy)
def train(loop):
    if resumes:
        checkpoint.loop = loop
        manager.restore_or_initialize()
    for epoch in loop.range(epochs):
        counted.assign(np.zeros(ROWS, np.int32))  # forgotten when the loop below goes on
        for batch in loop.batches(dataset):
            loss = float(step(batch))
            workers = strategy.num_replicas_in_sync
            note("step", step=loop.step, loss=loss, workers=workers, compiled=compiled)
            if resumes and loop.step % 3 == 1:
                manager.save()
            time.sleep(pause)
        numbers = np.asarray(counted.read_value()).tolist()
        note("epoch", epoch=epoch, counted=numbers, w=w.numpy().tolist())
        if saves:
            manager.save()
        if is_enough():
            break


note("start", workers=strategy.num_replicas_in_sync)
train()
note("end")
