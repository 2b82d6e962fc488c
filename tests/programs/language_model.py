"""A recurrent language model whose gradients accumulate in sync-on-read variables, as OpenNMT-tf does."""

import json

import numpy as np
import tensorflow as tf

VOCABULARY = 20
WIDTH = 12
BATCH_SIZE = 4
MAX_LENGTH = 8
ACCUMULATED_BATCHES = 3
NUM_UPDATES = 5


class GradientAccumulator:
    """Sums gradients of each replica until they are applied."""

    def __init__(self):
        self._gradients = []
        self._accum_steps = None

    @property
    def step(self):
        if self._accum_steps is None:
            self._accum_steps = tf.Variable(
                tf.constant(0, dtype=tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        return self._accum_steps.value()

    @property
    def gradients(self):
        if not self._gradients:
            raise ValueError("Call the accumulator before its gradients are read.")
        return [gradient.value() for gradient in self._gradients]

    def __call__(self, gradients):
        if not self._gradients:
            _ = self.step
            self._gradients.extend(
                tf.Variable(
                    tf.zeros_like(gradient),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.NONE,
                )
                for gradient in gradients
            )
        if len(gradients) != len(self._gradients):
            raise ValueError(f"Expected {len(self._gradients)} gradients, got {len(gradients)}.")
        for accumulated, gradient in zip(self._gradients, gradients):
            accumulated.assign_add(gradient, read_value=False)
        self._accum_steps.assign_add(1)

    def reset(self):
        if self._accum_steps is not None:
            self._accum_steps.assign(0)
        for gradient in self._gradients:
            gradient.assign(tf.zeros(gradient.shape, dtype=gradient.dtype), read_value=False)


class LanguageModel(tf.Module):
    def __init__(self, name=None):
        super().__init__(name=name)
        rng = np.random.default_rng(4)

        def weight(*shape):
            return tf.Variable(rng.normal(0.0, 0.3, shape).astype(np.float32))

        self.embedding = weight(VOCABULARY, WIDTH)
        self.gates = weight(2 * WIDTH, 2 * WIDTH)
        self.candidate = weight(2 * WIDTH, WIDTH)
        self.projection = weight(WIDTH, VOCABULARY)

    def cell(self, state, x):
        """One step of a gated recurrent unit."""
        gates = tf.sigmoid(tf.matmul(tf.concat([x, state], axis=-1), self.gates))
        reset, update = tf.split(gates, 2, axis=-1)
        candidate = tf.tanh(tf.matmul(tf.concat([x, reset * state], -1), self.candidate))
        return update * state + (1 - update) * candidate

    def __call__(self, ids):
        inputs = tf.nn.embedding_lookup(self.embedding, ids)
        inputs = tf.transpose(inputs, perm=[1, 0, 2])
        states = tf.scan(self.cell, inputs, initializer=tf.zeros_like(inputs[0]))
        return tf.einsum("tbw,wv->btv", states, self.projection)


def make_sentences():
    """Yields sentences of several lengths that count upwards."""
    rng = np.random.default_rng(8)
    for _ in range(2 * BATCH_SIZE * ACCUMULATED_BATCHES * NUM_UPDATES):
        length = rng.integers(3, MAX_LENGTH + 1)
        first, pace = rng.integers(VOCABULARY), rng.integers(1, 3)
        yield (1 + (first + pace * np.arange(length)) % (VOCABULARY - 1)).astype(np.int32)


def input_fn(context):
    dataset = tf.data.Dataset.from_generator(
        make_sentences, output_signature=tf.TensorSpec(shape=[None], dtype=tf.int32)
    )
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    dataset = dataset.map(lambda ids: {"ids": ids, "length": tf.shape(ids)[0]})
    batch_size = context.get_per_replica_batch_size(2 * BATCH_SIZE)
    return dataset.padded_batch(
        batch_size, padded_shapes={"ids": [MAX_LENGTH], "length": []}, drop_remainder=True
    )


class Trainer:
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = LanguageModel()
            self.optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
            self.words = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
        self.accumulator = GradientAccumulator()

    def _accumulate(self, batch):
        with tf.GradientTape() as tape:
            logits = self.model(batch["ids"][:, :-1])
            weights = tf.sequence_mask(batch["length"] - 1, MAX_LENGTH - 1, dtype=tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["ids"][:, 1:], logits)
            loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
        self.accumulator(tape.gradient(loss, self.model.trainable_variables))
        self.words.assign_add(tf.reduce_sum(tf.cast(batch["length"], tf.int64)))
        return loss

    def _apply(self):
        scale = tf.cast(self.accumulator.step * self.strategy.num_replicas_in_sync, tf.float32)
        gradients = [gradient / scale for gradient in self.accumulator.gradients]
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.accumulator.reset()

    @tf.function
    def accumulate(self, batch):
        losses = self.strategy.run(self._accumulate, args=(batch,))
        return self.strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    @tf.function
    def apply(self):
        self.strategy.run(self._apply)

    def train(self):
        losses = []
        for number, batch in enumerate(self.strategy.distribute_datasets_from_function(input_fn)):
            losses.append(self.accumulate(batch).numpy().item())
            if (number + 1) % ACCUMULATED_BATCHES == 0:
                self.apply()
        return losses


def main():
    trainer = Trainer(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    losses = trainer.train()
    return {
        "loss": losses,
        "words": int(trainer.words.read_value()),
        "updates": int(trainer.optimizer.iterations.numpy()),
        "weights": [float(tf.norm(v)) for v in trainer.model.trainable_variables],
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
