"""Keras under CentralStorageStrategy: fit with callbacks, evaluate, predict, and a loop of its own."""

import json

import numpy as np
import tensorflow as tf

NUM_ROWS = 64
NUM_FEATURES = 5
NUM_WORDS = 12
BATCH_SIZE = 16
EPOCHS = 3


def constant(seed, *shape):
    values = np.random.default_rng(seed).normal(0.0, shape[0] ** -0.5, shape)
    return tf.keras.initializers.Constant(values.astype(np.float32))


def make_model():
    """A wide and deep model: words and numbers, joined."""
    layers = tf.keras.layers
    words = tf.keras.Input((2,), dtype="int32", name="words")
    numbers = tf.keras.Input((NUM_FEATURES,), name="numbers")
    embedded = layers.Embedding(NUM_WORDS, 4, embeddings_initializer=constant(1, NUM_WORDS, 4))
    joined = layers.Concatenate()([layers.Flatten()(embedded(words)), numbers])
    hidden = layers.Dense(
        8,
        activation="tanh",
        kernel_initializer=constant(2, 8 + NUM_FEATURES, 8),
        kernel_regularizer=tf.keras.regularizers.L2(1e-3),
    )(joined)
    hidden = layers.LayerNormalization()(hidden)
    outputs = layers.Dense(1, kernel_initializer=constant(3, 8, 1))(hidden)
    return tf.keras.Model([words, numbers], outputs)


def make_data():
    rng = np.random.default_rng(0)
    words = rng.integers(0, NUM_WORDS, (NUM_ROWS, 2)).astype(np.int32)
    numbers = rng.normal(size=(NUM_ROWS, NUM_FEATURES)).astype(np.float32)
    targets = np.sin(words.sum(1, keepdims=True)) + numbers[:, :1]
    return words, numbers, targets.astype(np.float32)


class Recorder(tf.keras.callbacks.Callback):
    """Notes the learning rate and a norm at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.rates = []
        self.norms = []

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))


def halved(epoch, rate):
    return rate * 0.5 if epoch else rate


def train_by_fit(strategy, data):
    words, numbers, targets = data
    with strategy.scope():
        model = make_model()
        model.compile(
            tf.keras.optimizers.SGD(0.1, momentum=0.9),
            tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.MeanAbsoluteError(name="mae")],
        )
    recorder = Recorder()
    history = model.fit(
        (words, numbers),
        targets,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=((words[:32], numbers[:32]), targets[:32]),
        callbacks=[recorder, tf.keras.callbacks.LearningRateScheduler(halved)],
    ).history
    evaluated = model.evaluate(
        (words, numbers), targets, batch_size=BATCH_SIZE, verbose=0, return_dict=True
    )
    predicted = model.predict((words, numbers), batch_size=BATCH_SIZE, verbose=0)
    return {
        "loss": history["loss"],
        "mae": history["mae"],
        "val_loss": history["val_loss"],
        "rates": recorder.rates,
        "norms": recorder.norms,
        "evaluated": evaluated["loss"],
        "predicted": [float(value) for value in predicted[:4, 0]],
    }


class Loop:
    """A training loop of its own with the same model, in which replicas add what they counted."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = make_model()
            self.optimizer = tf.keras.optimizers.Adam(0.01)
            self.optimizer.build(self.model.trainable_variables)
            self.error = tf.keras.metrics.MeanAbsoluteError()
            self.rows = tf.Variable(
                0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    def _replica_step(self, words, numbers, targets):
        with tf.GradientTape() as tape:
            predicted = self.model([words, numbers], training=True)
            per_example = tf.reduce_mean(tf.square(targets - predicted), axis=1)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=BATCH_SIZE)
            penalty = tf.add_n(self.model.losses) / self.strategy.num_replicas_in_sync
            total = loss + penalty
        gradients = tape.gradient(total, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.error.update_state(targets, predicted)
        self.rows.assign_add(tf.shape(targets)[0])
        return total

    @tf.function
    def step(self, batch):
        losses = self.strategy.run(self._replica_step, args=batch)
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def train(self, data):
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH_SIZE)
        dataset = self.strategy.experimental_distribute_dataset(dataset)
        losses, errors = [], []
        for _ in range(EPOCHS):
            losses.extend(float(self.step(batch)) for batch in dataset)
            errors.append(float(self.error.result()))
            self.error.reset_state()
        return losses, errors


def main():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    data = make_data()
    loop = Loop(strategy)
    losses, errors = loop.train(data)
    return {
        **{f"fit_{name}": value for name, value in train_by_fit(strategy, data).items()},
        "loop_loss": losses,
        "loop_error": errors,
        "rows": int(loop.rows.read_value()),
        "steps": int(loop.optimizer.iterations.numpy()),
        "weights": [float(np.linalg.norm(np.asarray(v))) for v in loop.model.trainable_variables],
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
