"""A task of the tutorial "Parameter server training with ParameterServerStrategy".

Its argument is a directory that the chief and the evaluator see. Keras variables need a copy in each
replica, so the model here is made of variables.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import optax

import stratagem as tf

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
flags = parser.parse_args()

FEATURES = ["avatar", "avocado", "bicycle", "book", "cap", "chair", "door", "engine"]
LIKED = {"avatar", "book", "cap", "door"}
NUM_EPOCHS, STEPS_PER_EPOCH = 3, 10


class Model:
    """Gives the probability that a feature is liked, from its embedding."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.table = tf.Variable(rng.normal(0, 0.1, (len(FEATURES), 128)).astype(np.float32))
        self.kernel = tf.Variable(rng.normal(0, 0.1, (128, 1)).astype(np.float32))
        self.bias = tf.Variable(np.zeros(1, np.float32))

    @property
    def variables(self):
        return {"table": self.table, "kernel": self.kernel, "bias": self.bias}

    def __call__(self, features):
        return (self.table.sparse_read(features) @ self.kernel + self.bias)[:, 0]


def examples(rng, count):
    """Returns features as numbers, as a lookup makes them of strings, and whether they are liked."""
    names = rng.choice(FEATURES, count)
    numbers = np.array([FEATURES.index(name) for name in names], np.int32)
    return numbers, np.array([name in LIKED for name in names], np.float32)


def accuracy_of(model):
    features, labels = examples(np.random.default_rng(1), 100)
    return float(((np.asarray(model(features)) > 0) == labels).mean())


def dataset_fn(input_context):
    features, labels = examples(np.random.default_rng(0), 200)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    dataset = dataset.shuffle(64).repeat()
    batch_size = input_context.get_per_replica_batch_size(32) if input_context else 32
    return dataset.batch(batch_size).prefetch(2)


def direct(strategy):
    """The coordinator's program."""
    with strategy.scope():
        model = Model()
        accuracy = tf.metrics.BinaryAccuracy(threshold=0.0)
    optimizer = tf.train.Optimizer(optax.rmsprop, learning_rate=0.05)

    @tf.function
    def step_fn(iterator):
        def replica_fn(features, labels):
            def loss():
                scores = model(features)
                losses = optax.sigmoid_binary_cross_entropy(scores, labels)
                return tf.nn.compute_average_loss(losses), scores

            (value, scores), gradients = tf.value_and_grad(loss, model.variables, has_aux=True)()
            optimizer.apply(gradients, model.variables)
            accuracy.update_state(labels, scores)
            return value

        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(dataset_fn)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
    per_worker_iterator = iter(per_worker_dataset)
    checkpoint = tf.train.Checkpoint(**model.variables)
    accuracies = []
    for _ in range(NUM_EPOCHS):
        accuracy.reset_state()
        for _ in range(STEPS_PER_EPOCH):
            coordinator.schedule(step_fn, args=(per_worker_iterator,))
        coordinator.join()
        accuracies.append(float(accuracy.result()))
        checkpoint.save(flags.directory / "ckpt")

    loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    return {
        "shards": len(model.table.variables),
        "accuracies": accuracies,
        "loss": float(loss.fetch()),
        "accuracy": accuracy_of(model),  # evaluated by the coordinator
    }


def evaluate_from_the_side():
    """The evaluator's program: it looks at every checkpoint until the last one."""
    model = Model()
    checkpoint = tf.train.Checkpoint(**model.variables)
    seen, accuracies = None, []
    deadline = time.monotonic() + 120
    while (seen or "").rpartition("-")[2] != str(NUM_EPOCHS):
        assert time.monotonic() < deadline
        latest = tf.train.latest_checkpoint(flags.directory)
        if latest == seen:
            time.sleep(0.02)
            continue
        checkpoint.restore(latest)
        accuracies.append(accuracy_of(model))
        seen = latest
    return {"accuracies": accuracies}


resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()
elif resolver.task_type == "evaluator":
    print("RESULT", json.dumps(evaluate_from_the_side()), flush=True)
else:
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=1024, max_shards=2
    )
    result = direct(
        tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    )
    print("RESULT", json.dumps(result), flush=True)
