"""A worker of the tutorial "Multi-worker training with Keras".

Its argument is a directory that all workers see. With ``--die`` a worker kills itself in the second epoch,
once.
"""

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path

import numpy as np

import stratagem as tf

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("--die", action="store_true")
flags = parser.parse_args()

PER_WORKER_BATCH_SIZE = 8
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def rows_dataset(batch_size):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 4)).astype(np.float32)
    labels = (rows.sum(axis=1) > 0).astype(np.int64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(batch_size)
    return dataset.with_options(options)


def build_and_compile_model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((4,)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model


def is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


def path_to_write(path, task_type, task_id):
    """Returns the path for the chief, and one that is thrown away for the others."""
    if is_chief(task_type, task_id):
        return path
    return Path(tempfile.mkdtemp()) / path.name


class DieOnce(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        died = flags.directory / "died"
        if epoch == 1 and strategy.cluster_resolver.task_id == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


dataset = rows_dataset(PER_WORKER_BATCH_SIZE * num_workers)
with strategy.scope():
    model = build_and_compile_model()

callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=flags.directory / "backup")]
if flags.die:
    callbacks.append(DieOnce())
history = model.fit(
    dataset, epochs=3, validation_data=dataset, callbacks=callbacks, verbose=0
).history

# Every worker saves, the chief where it is to stay.
task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
model_path = flags.directory / "model.keras"
model.save(path_to_write(model_path, task_type, task_id))
predictions = model.predict(dataset, verbose=0)

# A checkpoint is written by all together, and restored by all.
checkpoint = tf.train.Checkpoint(model=model)
checkpoint.save(flags.directory / "ckpt")
trained = model.get_weights()
model.set_weights([np.zeros_like(weight) for weight in trained])
checkpoint.restore(tf.train.latest_checkpoint(flags.directory))

result = {
    "task": [task_type, task_id],
    "replicas": strategy.num_replicas_in_sync,
    "loss": history["loss"],
    "val_loss": history["val_loss"],
    "evaluated": model.evaluate(dataset, verbose=0),
    "predictions": predictions.tolist(),
    "restored": all(
        np.array_equal(*pair) for pair in zip(model.get_weights(), trained, strict=True)
    ),
}
print("RESULT", json.dumps(result), flush=True)
