"""A small BERT: masked words and next sentences, with a warm-up, weight decay and a loop of many steps."""

import json
import re

import numpy as np
import tensorflow as tf

VOCABULARY = 24
WIDTH = 16
HEADS = 2
LAYERS = 2
LENGTH = 12
NUM_MASKED = 3
MASK = 1
GLOBAL_BATCH_SIZE = 8
STEPS_PER_LOOP = 4
LOOPS = 3
WARMUP_STEPS = 4
PEAK_RATE = 5e-3
NO_DECAY = ["LayerNorm", "layer_norm", "bias"]


class Initial:
    """Gives every weight values of its own, the same in every library."""

    def __init__(self):
        self._count = 0

    def __call__(self, scale=0.2):
        self._count += 1
        seed = self._count

        def initialize(shape, dtype=None, **kwargs):
            values = np.random.default_rng(seed).normal(0.0, scale, tuple(shape))
            return tf.constant(values.astype(np.float32))

        return initialize


class WarmUp(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then linear decay to zero."""

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        total = float(STEPS_PER_LOOP * LOOPS)
        warm = PEAK_RATE * step / WARMUP_STEPS
        decayed = PEAK_RATE * (1.0 - (step - WARMUP_STEPS) / (total - WARMUP_STEPS))
        return tf.where(step < WARMUP_STEPS, warm, decayed)


class EncoderLayer(tf.keras.layers.Layer):
    def __init__(self, initial, **kwargs):
        super().__init__(**kwargs)
        layers = tf.keras.layers
        self.projections = {
            name: layers.Dense(WIDTH, kernel_initializer=initial(), name=name)
            for name in ("query", "key", "value", "output_dense")
        }
        self.query, self.key, self.value, self.out = self.projections.values()
        self.attention_norm = layers.LayerNormalization(epsilon=1e-6, name="attention_layer_norm")
        self.inner = layers.Dense(
            2 * WIDTH, activation=tf.nn.gelu, kernel_initializer=initial(), name="inner"
        )
        self.outer = layers.Dense(WIDTH, kernel_initializer=initial(), name="outer")
        self.output_norm = layers.LayerNormalization(epsilon=1e-6, name="output_layer_norm")

    def heads(self, values):
        shape = tf.shape(values)
        split = tf.reshape(values, [shape[0], shape[1], HEADS, WIDTH // HEADS])
        return tf.transpose(split, [0, 2, 1, 3])

    def call(self, hidden, mask):
        query, key, value = (
            self.heads(layer(hidden)) for layer in (self.query, self.key, self.value)
        )
        scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(WIDTH / HEADS)
        scores += (1.0 - mask[:, tf.newaxis, tf.newaxis, :]) * -1e9
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        mixed = tf.reshape(mixed, tf.shape(hidden))
        hidden = self.attention_norm(hidden + self.out(mixed))
        return self.output_norm(hidden + self.outer(self.inner(hidden)))


class Bert(tf.keras.Model):
    """An encoder with a head for masked words, which shares the embedding, and one for the pair."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        initial, layers = Initial(), tf.keras.layers
        self.words = layers.Embedding(VOCABULARY, WIDTH, embeddings_initializer=initial())
        self.segments = layers.Embedding(2, WIDTH, embeddings_initializer=initial())
        self.positions = layers.Embedding(LENGTH, WIDTH, embeddings_initializer=initial())
        self.embedding_norm = layers.LayerNormalization(epsilon=1e-6, name="embedding_layer_norm")
        self.encoder = [EncoderLayer(initial, name=f"layer_{i}") for i in range(LAYERS)]
        self.pooler = layers.Dense(WIDTH, activation="tanh", kernel_initializer=initial())
        self.transform = layers.Dense(
            WIDTH, activation=tf.nn.gelu, kernel_initializer=initial(), name="transform"
        )
        self.transform_norm = layers.LayerNormalization(epsilon=1e-6, name="transform_layer_norm")
        self.output_bias = layers.Dense(VOCABULARY, kernel_initializer="zeros", name="output_bias")
        self.pair = layers.Dense(2, kernel_initializer=initial(), name="pair")

    def call(self, inputs):
        words, mask, segments, positions = (
            inputs[name] for name in ("words", "mask", "segments", "masked_positions")
        )
        hidden = self.words(words) + self.segments(segments)
        hidden = self.embedding_norm(hidden + self.positions(tf.range(LENGTH)))
        for layer in self.encoder:
            hidden = layer(hidden, mask)
        masked = tf.gather(hidden, positions, batch_dims=1)
        masked = self.transform_norm(self.transform(masked))
        table = tf.convert_to_tensor(self.words.embeddings)
        logits = tf.matmul(masked, table, transpose_b=True) + self.output_bias(masked)
        return logits, self.pair(self.pooler(hidden[:, 0]))


def make_data():
    """Sentences that count upwards; the second one continues the first, or begins anywhere."""
    rng = np.random.default_rng(0)
    size, half = GLOBAL_BATCH_SIZE * STEPS_PER_LOOP * LOOPS, LENGTH // 2
    follows = rng.integers(0, 2, size)
    first = rng.integers(0, VOCABULARY, size)
    second = np.where(follows, first + half, rng.integers(0, VOCABULARY, size))
    counted = np.arange(half)
    words = np.concatenate([first[:, None] + counted, second[:, None] + counted], axis=1)
    words = 2 + words % (VOCABULARY - 2)
    lengths = rng.integers(LENGTH - 2, LENGTH + 1, size)
    positions = np.stack([rng.permutation(LENGTH - 2)[:NUM_MASKED] for _ in range(size)])
    labels = np.take_along_axis(words, positions, axis=1)
    masked = words.copy()
    np.put_along_axis(masked, positions, MASK, axis=1)
    features = {
        "words": masked.astype(np.int32),
        "mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.float32),
        "segments": np.tile(np.repeat([0, 1], half), (size, 1)).astype(np.int32),
        "masked_positions": positions.astype(np.int32),
        "masked_ids": labels.astype(np.int32),
        "masked_weights": (positions < lengths[:, None]).astype(np.float32),
        "follows": follows.astype(np.int32),
    }
    return tf.data.Dataset.from_tensor_slices(features).batch(GLOBAL_BATCH_SIZE)


class Pretraining:
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = Bert()
            self.optimizer = tf.keras.optimizers.AdamW(WarmUp(), weight_decay=0.01)
            self.word_loss = tf.keras.metrics.Mean(name="masked_lm_loss")
            self.word_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(
                name="masked_lm_accuracy"
            )
            self.pair_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="pair_accuracy")
        self.metrics = [self.word_loss, self.word_accuracy, self.pair_accuracy]

    def build(self, features):
        with self.strategy.scope():
            self.model({name: value[:1] for name, value in features.items()})
            self.optimizer.exclude_from_weight_decay(
                var_list=[
                    variable
                    for variable in self.model.trainable_variables
                    if any(re.search(pattern, variable.path) for pattern in NO_DECAY)
                ]
            )
            self.optimizer.build(self.model.trainable_variables)

    def replica_step(self, features):
        with tf.GradientTape() as tape:
            word_logits, pair_logits = self.model(features)
            weights = features["masked_weights"]
            word_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=features["masked_ids"], logits=word_logits
            )
            per_example = tf.reduce_sum(word_losses * weights, axis=-1)
            per_example /= tf.reduce_sum(weights, axis=-1) + 1e-5
            pair_losses = tf.keras.losses.sparse_categorical_crossentropy(
                features["follows"], pair_logits, from_logits=True
            )
            loss = tf.nn.compute_average_loss(
                per_example + pair_losses, global_batch_size=GLOBAL_BATCH_SIZE
            )
        variables = self.model.trainable_variables
        # Dense: TensorFlow's norm of sparse rows counts a row that occurs twice as two.
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        # Clipped as sums, so that the norm is that of the global batch; the optimizer sums again.
        share = 1.0 / self.strategy.num_replicas_in_sync
        gradients = [gradient * share for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, variables))
        self.word_loss.update_state(per_example)
        self.word_accuracy.update_state(features["masked_ids"], word_logits, sample_weight=weights)
        self.pair_accuracy.update_state(features["follows"], pair_logits)
        return loss, norm

    @tf.function
    def train_steps(self, iterator, steps):
        """Runs several steps in one call, as a TPU wants it."""
        for _ in tf.range(steps - 1):
            self.strategy.run(self.replica_step, args=(next(iterator),))
        loss, norm = self.strategy.run(self.replica_step, args=(next(iterator),))
        return (
            self.strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None),
            self.strategy.reduce(tf.distribute.ReduceOp.MEAN, norm, axis=None),
        )


def main():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    training = Pretraining(strategy)
    dataset = make_data()
    training.build(next(iter(dataset)))
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    results = {"loss": [], "norm": [], **{metric.name: [] for metric in training.metrics}}
    for _ in range(LOOPS):
        loss, norm = training.train_steps(iterator, tf.constant(STEPS_PER_LOOP))
        results["loss"].append(float(loss))
        results["norm"].append(float(norm))
        for metric in training.metrics:
            results[metric.name].append(float(metric.result()))
            metric.reset_state()
    return {
        **results,
        "steps": int(training.optimizer.iterations.numpy()),
        "kernels": [
            float(tf.norm(v)) for v in training.model.trainable_variables if len(v.shape) == 2
        ],
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
