"""A worker of the tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy".

Its argument is a directory that all workers see. With ``--die`` a worker kills itself after the first
checkpoint, once.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import numpy as np

import stratagem as tf

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("--die", action="store_true")
flags = parser.parse_args()

PER_WORKER_BATCH_SIZE = 8
NUM_EPOCHS, STEPS_PER_EPOCH, STEPS_PER_CHECKPOINT = 3, 4, 2
num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
GLOBAL_BATCH_SIZE = PER_WORKER_BATCH_SIZE * num_workers
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)


def dataset_fn(global_batch_size, input_context):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 4)).astype(np.float32)
    labels = (rows.sum(axis=1) > 0).astype(np.int64)
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels))
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    return dataset.repeat().batch(batch_size)


with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((4,)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.01)
    optimizer.build(model.trainable_variables)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    epoch = tf.Variable(0, name="epoch")
    step_in_epoch = tf.Variable(0, name="step_in_epoch")

multi_worker_dataset = strategy.distribute_datasets_from_function(
    lambda input_context: dataset_fn(GLOBAL_BATCH_SIZE, input_context)
)


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs

        def forward():
            predictions = model(x, training=True)
            per_example_loss = loss_object(y, predictions)
            return (
                tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE),
                predictions,
            )

        (loss, predictions), gradients = tf.value_and_grad(
            forward, model.trainable_variables, has_aux=True
        )()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(y, predictions)
        return loss

    per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


checkpoint = tf.train.Checkpoint(
    model=model, optimizer=optimizer, epoch=epoch, step_in_epoch=step_in_epoch
)
latest_checkpoint = tf.train.latest_checkpoint(flags.directory)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)
resumed_at = [int(epoch), int(step_in_epoch)]

accuracies, losses = [], []
while int(epoch) < NUM_EPOCHS:
    iterator = iter(multi_worker_dataset)
    for _ in range(int(step_in_epoch)):
        next(iterator)  # what was trained with before the last checkpoint
    total_loss, num_batches = 0.0, 0
    while int(step_in_epoch) < STEPS_PER_EPOCH:
        total_loss += float(train_step(iterator))
        num_batches += 1
        step_in_epoch.assign_add(1)
        if int(step_in_epoch) == STEPS_PER_CHECKPOINT:
            checkpoint.save(flags.directory / "ckpt")
            died = flags.directory / "died"
            if flags.die and strategy.cluster_resolver.task_id == 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    accuracies.append(float(train_accuracy.result()))
    losses.append(total_loss / num_batches)
    train_accuracy.reset_state()
    epoch.assign_add(1)
    step_in_epoch.assign(0)
checkpoint.save(flags.directory / "ckpt")

result = {
    "task": [strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id],
    "resumed_at": resumed_at,
    "accuracies": accuracies,
    "losses": losses,
    "iterations": int(optimizer.iterations),
    "weights": [weight.numpy().tolist() for weight in model.weights],
}
print("RESULT", json.dumps(result), flush=True)
