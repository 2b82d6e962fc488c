"""Training that is preempted and resumes from a checkpoint, by a handler and by a manager."""

import json
import os
import signal
import tempfile

import numpy as np
import tensorflow as tf

NUM_FEATURES = 6
GLOBAL_BATCH_SIZE = 8
STEPS_PER_EPOCH = 6
EPOCHS = 3
PREEMPTED_AT = 8


class Preempted(Exception):
    """What ends a start instead of the process, so that the next can be in the same program."""


class Regression(tf.Module):
    def __init__(self, name="regression"):
        super().__init__(name=name)
        rng = np.random.default_rng(30)
        self.hidden = tf.Variable(
            rng.normal(0.0, 0.4, (NUM_FEATURES, 10)), dtype=tf.float32, name="hidden"
        )
        self.output = tf.Variable(rng.normal(0.0, 0.4, (10, 1)), dtype=tf.float32, name="output")

    def __call__(self, x):
        return tf.squeeze(tf.matmul(tf.nn.elu(tf.matmul(x, self.hidden)), self.output), axis=-1)


def make_dataset():
    rng = np.random.default_rng(31)
    x = rng.normal(size=(GLOBAL_BATCH_SIZE * STEPS_PER_EPOCH, NUM_FEATURES)).astype(np.float32)
    y = np.cos(x).sum(axis=1)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)


class Training:
    """All that a start makes: model, optimizer, counters, and the checkpoint of them."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = Regression()
            self.optimizer = tf.keras.optimizers.Adam(0.02)
            self.optimizer.build(self.model.trainable_variables)
            self.epoch = tf.Variable(
                initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="epoch"
            )
            self.step_in_epoch = tf.Variable(
                initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="step_in_epoch"
            )
            self.checkpoint = tf.train.Checkpoint(
                model=self.model,
                optimizer=self.optimizer,
                epoch=self.epoch,
                step_in_epoch=self.step_in_epoch,
            )

    @tf.function
    def step(self, iterator):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                errors = tf.square(self.model(x) - y)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH_SIZE)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
            return loss

        losses = self.strategy.run(replica_step, args=next(iterator))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def run_step(self, iterator):
        loss = self.step(iterator)
        self.step_in_epoch.assign_add(1)
        return loss

    def iterator(self):
        """Returns the rest of the epoch."""
        done = int(self.step_in_epoch.numpy())
        return iter(self.strategy.experimental_distribute_dataset(make_dataset().skip(done)))


def train_with_handler(strategy, directory, losses, preempted_at=None):
    """One start of the program; it ends early if it is preempted."""

    def leave():
        raise Preempted

    training = Training(strategy)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({})),
        training.checkpoint,
        directory,
        tf.distribute.experimental.TerminationConfig(exit_fn=leave),
    )
    resumed_at = int(handler.total_run_calls)
    while training.epoch.numpy() < EPOCHS:
        iterator = training.iterator()
        while training.step_in_epoch.numpy() < STEPS_PER_EPOCH:
            losses[handler.total_run_calls] = float(handler.run(training.run_step, iterator))
            if handler.total_run_calls == preempted_at:
                os.kill(os.getpid(), signal.SIGTERM)
        training.epoch.assign_add(1)
        training.step_in_epoch.assign(0)
    return resumed_at


def train_with_manager(strategy, directory, num_epochs):
    """The classical way: a checkpoint after each epoch, the newest of them restored."""
    training = Training(strategy)
    manager = tf.train.CheckpointManager(
        training.checkpoint, directory, max_to_keep=2, checkpoint_name="weights"
    )
    restored = manager.restore_or_initialize()
    losses = []
    for _ in range(num_epochs):
        iterator = training.iterator()
        for _ in range(STEPS_PER_EPOCH):
            losses.append(float(training.step(iterator)))
        training.epoch.assign_add(1)
        manager.save(checkpoint_number=training.epoch.numpy())
    names = [os.path.basename(path) for path in manager.checkpoints]
    return losses, names, restored is not None


def main():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    directory = tempfile.mkdtemp()
    losses = {}
    starts = 1
    try:
        train_with_handler(strategy, directory, losses, PREEMPTED_AT)
    except Preempted:
        starts += 1
        resumed_at = train_with_handler(strategy, directory, losses)

    directory = os.path.join(tempfile.mkdtemp(), "managed")
    first_losses, _, _ = train_with_manager(strategy, directory, 2)
    last_losses, names, was_restored = train_with_manager(strategy, directory, 1)

    latest = tf.train.latest_checkpoint(directory)
    alone = Regression()  # without the strategy, and without the optimizer
    tf.train.Checkpoint(model=alone).restore(latest).expect_partial()
    return {
        "loss": [losses[number] for number in sorted(losses)],
        "starts": starts,
        "resumed": resumed_at >= PREEMPTED_AT,
        "managed_loss": first_losses + last_losses,
        "checkpoints": names,
        "was_restored": was_restored,
        "alone": alone(tf.ones([1, NUM_FEATURES])).numpy().tolist(),
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
