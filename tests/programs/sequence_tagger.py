"""A small transformer that labels tokens, trained many steps per call as the model garden does."""

import json
import math

import numpy as np
import tensorflow as tf

VOCABULARY = 24
SEQUENCE_LENGTH = 10
WIDTH = 16
NUM_HEADS = 2
GLOBAL_BATCH_SIZE = 8
STEPS_PER_LOOP = 5
TRAIN_STEPS = 20
WARMUP_STEPS = 4
LEARNING_RATE = 2e-2


class WarmupDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Rises for some steps, and falls linearly to zero at the end."""

    def __init__(self, learning_rate, warmup_steps, train_steps):
        super().__init__()
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.train_steps = train_steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        warm = self.learning_rate * (step + 1.0) / self.warmup_steps
        left = (self.train_steps - step) / (self.train_steps - self.warmup_steps)
        return tf.cond(step < self.warmup_steps, lambda: warm, lambda: self.learning_rate * left)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "train_steps": self.train_steps,
        }


class Linear(tf.Module):
    def __init__(self, rng, in_size, out_size, name=None):
        super().__init__(name=name)
        scale = 1.0 / math.sqrt(in_size)
        self.w = tf.Variable(
            rng.normal(0.0, scale, (in_size, out_size)).astype("float32"), name="w"
        )
        self.b = tf.Variable(tf.zeros([out_size]), name="b")

    def __call__(self, x):
        return tf.nn.bias_add(tf.tensordot(x, self.w, axes=1), self.b)


class LayerNorm(tf.Module):
    def __init__(self, size, name=None):
        super().__init__(name=name)
        self.gamma = tf.Variable(tf.ones([size]), name="gamma")
        self.beta = tf.Variable(tf.zeros([size]), name="beta")

    def __call__(self, x):
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, 1e-6)


class Encoder(tf.Module):
    """One layer of attention over tokens, with tied output embeddings."""

    def __init__(self, rng, name="encoder"):
        super().__init__(name=name)
        self.embedding = tf.Variable(
            rng.normal(0.0, 0.5, (VOCABULARY, WIDTH)).astype("float32"), name="embedding"
        )
        self.query = Linear(rng, WIDTH, WIDTH, name="query")
        self.key = Linear(rng, WIDTH, WIDTH, name="key")
        self.value = Linear(rng, WIDTH, WIDTH, name="value")
        self.output = Linear(rng, WIDTH, WIDTH, name="output")
        self.norms = [LayerNorm(WIDTH), LayerNorm(WIDTH)]
        self.feed_forward = [Linear(rng, WIDTH, 2 * WIDTH), Linear(rng, 2 * WIDTH, WIDTH)]

    def _split_heads(self, x):
        batch_size = tf.shape(x)[0]
        x = tf.reshape(x, [batch_size, -1, NUM_HEADS, WIDTH // NUM_HEADS])
        return tf.transpose(x, [0, 2, 1, 3])

    @tf.Module.with_name_scope
    def __call__(self, ids, mask):
        x = tf.gather(self.embedding, ids) * tf.math.sqrt(tf.cast(WIDTH, tf.float32))
        query, key, value = (self._split_heads(f(x)) for f in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(WIDTH // NUM_HEADS)
        scores += (1.0 - tf.cast(mask, tf.float32)[:, tf.newaxis, tf.newaxis, :]) * -1e9
        attended = tf.matmul(tf.nn.softmax(scores, axis=-1), value)
        attended = tf.reshape(tf.transpose(attended, [0, 2, 1, 3]), tf.shape(x))
        x = self.norms[0](x + self.output(attended))
        hidden = tf.nn.gelu(self.feed_forward[0](x), approximate=True)
        x = self.norms[1](x + self.feed_forward[1](hidden))
        return tf.matmul(x, self.embedding, transpose_b=True)


def make_dataset():
    """Returns sequences without end; a token's label is the token before it."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(4, SEQUENCE_LENGTH + 1, size=64)
    ids = rng.integers(1, VOCABULARY, size=(64, SEQUENCE_LENGTH)).astype(np.int32)
    mask = (np.arange(SEQUENCE_LENGTH) < lengths[:, None]).astype(np.int32)
    labels = np.roll(ids, 1, axis=1)
    features = {"ids": ids * mask, "mask": mask, "labels": labels}
    dataset = tf.data.Dataset.from_tensor_slices(features).repeat()
    dataset = dataset.batch(GLOBAL_BATCH_SIZE, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


class Trainer:
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = Encoder(np.random.default_rng(5))
            self.optimizer = tf.keras.optimizers.Adam(
                WarmupDecay(LEARNING_RATE, WARMUP_STEPS, TRAIN_STEPS), epsilon=1e-6
            )
            self.optimizer.build(self.model.trainable_variables)
            self.loss_metric = tf.keras.metrics.Mean("loss", dtype=tf.float32)
            self.global_step = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _replica_step(self, inputs):
        with tf.GradientTape() as tape:
            logits = self.model(inputs["ids"], inputs["mask"])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=inputs["labels"], logits=logits
            )
            weights = tf.cast(inputs["mask"], losses.dtype)
            per_example = tf.reduce_sum(losses * weights, axis=-1) / tf.reduce_sum(weights, axis=-1)
            loss = tf.reduce_mean(per_example)
            scaled_loss = loss / self.strategy.num_replicas_in_sync
        gradients = tape.gradient(scaled_loss, self.model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(list(zip(gradients, self.model.trainable_variables)))
        self.global_step.assign_add(1)
        self.loss_metric.update_state(loss)

    @tf.function
    def train_loop(self, iterator, num_steps):
        for _ in tf.range(num_steps):
            self.strategy.run(self._replica_step, args=(next(iterator),))

    def train(self):
        iterator = iter(self.strategy.experimental_distribute_dataset(make_dataset()))
        history = []
        current_step = self.global_step.numpy()
        while current_step < TRAIN_STEPS:
            num_steps = min(STEPS_PER_LOOP, TRAIN_STEPS - current_step)
            self.loss_metric.reset_state()
            self.train_loop(iterator, tf.convert_to_tensor(num_steps, dtype=tf.int32))
            current_step = self.global_step.numpy()
            history.append(self.loss_metric.result().numpy().astype(float))
        return history


def main():
    trainer = Trainer(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    history = trainer.train()
    num_weights = sum(v.shape.num_elements() for v in trainer.model.trainable_variables)
    return {
        "loss": history,
        "steps": int(trainer.optimizer.iterations.numpy()),
        "weights": num_weights,
        "norm": float(tf.linalg.global_norm(trainer.model.trainable_variables)),
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
