"""Keras on parameter servers, by fit and by a loop of its own, while a worker and a server are killed.

This process starts the tasks of a cluster, each a process of this file. It kills a worker, which costs
nothing, and a parameter server, whose loss ends the chief: both are started again, and the chief
continues with what it has saved.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

NUM_USERS = 300
NUM_ITEMS = 40
BATCH_SIZE = 32
STEPS_PER_EPOCH = 40
EPOCHS = 8
WORKER_LOST_AFTER = 1
SERVER_LOST_AFTER = 4
LOST_A_SERVER = 3  # the chief's exit code
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_FAIL_FAST": "use_caller"}


# --- the chief --------------------------------------------------------------------------------------


def make_model():
    """Which users like which items: embeddings of both, and a hidden layer."""
    layers = tf.keras.layers
    users = tf.keras.Input((), dtype="int32", name="user")
    items = tf.keras.Input((), dtype="int32", name="item")
    embedded = [
        layers.Embedding(NUM_USERS, 8, name="users")(users),
        layers.Embedding(NUM_ITEMS, 8, name="items")(items),
    ]
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()(embedded))
    return tf.keras.Model([users, items], layers.Dense(1)(hidden))


def make_examples(seed, count):
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, NUM_USERS, count), rng.integers(0, NUM_ITEMS, count)
    likes = (users % 4 == items % 4) | (users % 4 == 3)
    return users.astype(np.int32), items.astype(np.int32), likes.astype(np.float32)[:, None]


def dataset_fn(context=None):
    seed = 0 if context is None else context.input_pipeline_id
    users, items, likes = make_examples(seed, 4000)
    dataset = tf.data.Dataset.from_tensor_slices(((users, items), likes))
    return dataset.shuffle(1000).repeat().batch(BATCH_SIZE)


def make_strategy(resolver):
    return tf.distribute.ParameterServerStrategy(
        resolver,
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=2048, max_shards=2
        ),
    )


def accuracy_of(model):
    users, items, likes = make_examples(99, 800)
    return float(np.mean((np.asarray(model([users, items])) > 0) == likes))


class Reporter(tf.keras.callbacks.Callback):
    """Tells at the end of an epoch that it is over, and how many steps there were."""

    def on_epoch_end(self, epoch, logs=None):
        report("epoch", epoch)
        report("steps", int(self.model.optimizer.iterations.numpy()))


def train_by_fit(strategy, directory):
    with strategy.scope():
        model = make_model()
        model.compile(
            tf.keras.optimizers.Adam(0.03),
            tf.keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(dataset_fn),
        epochs=EPOCHS,
        steps_per_epoch=STEPS_PER_EPOCH,
        verbose=0,
        callbacks=[tf.keras.callbacks.BackupAndRestore(directory), Reporter()],
    ).history
    report("learned", bool(np.isfinite(history["loss"]).all()))
    return model


def train_by_loop(strategy, directory):
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.Adam(0.03)
        optimizer.build(model.trainable_variables)
        accuracy = tf.keras.metrics.BinaryAccuracy(threshold=0.0)
        loss_object = tf.keras.losses.BinaryCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE
        )
        epochs_done = tf.Variable(0, trainable=False)

    @tf.function
    def step(iterator):
        def replica_step(features, labels):
            with tf.GradientTape() as tape:
                logits = model(features, training=True)
                loss = tf.nn.compute_average_loss(loss_object(labels, logits))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            accuracy.update_state(labels, logits)
            return loss

        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epochs_done=epochs_done)
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    while epochs_done.numpy() < EPOCHS:
        accuracy.reset_state()
        for _ in range(STEPS_PER_EPOCH):
            loss = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        report("learned", bool(np.isfinite(loss.fetch())) and float(accuracy.result()) > 0.4)
        epochs_done.assign_add(1)
        manager.save()
        report("epoch", int(epochs_done.numpy()) - 1)
        report("steps", int(optimizer.iterations.numpy()))
    return model


def report(name, value):
    print(json.dumps([name, value]), flush=True)


def run_task(train_by, directory):
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    try:
        train = {"fit": train_by_fit, "loop": train_by_loop}[train_by]
        report("accuracy", accuracy_of(train(make_strategy(resolver), directory)))
    except tf.errors.UnavailableError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(LOST_A_SERVER)


# --- the cluster ------------------------------------------------------------------------------------


class Cluster:
    """A chief, two workers and two parameter servers."""

    def __init__(self, train_by, directory):
        self.arguments = [train_by, os.path.join(directory, train_by)]
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        self.spec = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
        self.tasks = {}
        for job, index in [("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1)]:
            self.start(job, index)

    def start(self, job, index):
        task = {"cluster": self.spec, "task": {"type": job, "index": index}}
        self.tasks[job, index] = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *self.arguments],
            env={**os.environ, **ENVIRONMENT, "TF_CONFIG": json.dumps(task)},
            stdout=subprocess.PIPE if job == "chief" else None,
            text=True,
        )
        return self.tasks[job, index]

    def replace(self, job, index):
        """Kills a task without notice, and starts it again."""
        self.tasks[job, index].send_signal(signal.SIGKILL)
        self.tasks[job, index].wait()
        self.start(job, index)

    def close(self):
        for task in self.tasks.values():
            task.kill()
            task.wait()


def train_on_cluster(train_by, directory):
    """Returns what the chief reported, while tasks were lost."""
    cluster = Cluster(train_by, directory)
    reports = {"epoch": [], "steps": [], "learned": [], "accuracy": []}
    chief_codes = []
    try:
        while not chief_codes or chief_codes[-1] == LOST_A_SERVER:
            chief = cluster.start("chief", 0)
            for line in chief.stdout:
                if not line.startswith('["'):
                    continue
                name, value = json.loads(line)
                reports[name].append(value)
                if name == "steps" and not chief_codes:
                    if reports["epoch"][-1] == WORKER_LOST_AFTER:
                        cluster.replace("worker", 0)
                    if reports["epoch"][-1] == SERVER_LOST_AFTER:
                        cluster.replace("ps", 1)
            chief_codes.append(chief.wait())
    finally:
        cluster.close()
    before = reports["epoch"].index(SERVER_LOST_AFTER) + 1
    return {
        f"{train_by}_chief_codes": chief_codes,
        f"{train_by}_first_epochs": reports["epoch"][:before],
        f"{train_by}_last_epoch": reports["epoch"][-1],
        f"{train_by}_continued": 0 < reports["epoch"][before] <= SERVER_LOST_AFTER + 1,
        f"{train_by}_steps_of_first_epoch": reports["steps"][0],
        f"{train_by}_no_step_is_missing": reports["steps"][-1] >= EPOCHS * STEPS_PER_EPOCH,
        f"{train_by}_learned": all(reports["learned"]),
        # How far the loop gets depends on which steps the lost worker repeats.
        **({"fit_accuracy": reports["accuracy"][0] > 0.65} if train_by == "fit" else {}),
    }


def main():
    directory = tempfile.mkdtemp()
    try:
        return {**train_on_cluster("fit", directory), **train_on_cluster("loop", directory)}
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        run_task(*sys.argv[1:])
    else:
        print(json.dumps(main()))
