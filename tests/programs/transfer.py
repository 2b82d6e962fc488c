"""Transfer learning: a backbone from a TensorFlow checkpoint, first with a new head, then all of it."""

import json
import os

import numpy as np
import tensorflow as tf

# Written by train_backbone() with TensorFlow.
CHECKPOINT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "files", "backbone-1")
IMAGE_SHAPE = (6, 6, 1)
NUM_CLASSES = 3
GLOBAL_BATCH_SIZE = 12


def constant(seed, *shape):
    scale = np.prod(shape[:-1]) ** -0.5
    values = np.random.default_rng(seed).normal(0.0, scale, shape)
    return tf.keras.initializers.Constant(values.astype(np.float32))


def make_backbone():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input(IMAGE_SHAPE),
            layers.Conv2D(4, 3, name="conv", kernel_initializer=constant(1, 3, 3, 1, 4)),
            layers.BatchNormalization(momentum=0.9, name="bn"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(
                8, activation="tanh", name="features", kernel_initializer=constant(2, 4, 8)
            ),
        ],
        name="backbone",
    )


def make_data(seed, num_classes):
    """Returns images of one bright row or column, and which it is."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, 48)
    images = rng.normal(0.0, 0.3, (48, *IMAGE_SHAPE)).astype(np.float32)
    for image, label in zip(images, labels):
        image[label if num_classes < 4 else label % 6, :, 0] += 1.5
    return images, labels.astype(np.int32)


def head(seed, num_classes):
    return tf.keras.layers.Dense(
        num_classes, name="head", kernel_initializer=constant(seed, 8, num_classes)
    )


def train_backbone(prefix):
    """Trains on another task, and saves the backbone with its optimizer."""
    backbone = make_backbone()
    model = tf.keras.Sequential([backbone, head(3, 6)])
    optimizer = tf.keras.optimizers.Adam(0.02)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(*make_data(0, 6), batch_size=12, epochs=4, shuffle=False, verbose=0)
    return tf.train.Checkpoint(backbone=backbone, optimizer=optimizer).save(prefix)


class FineTuner:
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.backbone = make_backbone()
            checkpoint = tf.train.Checkpoint(backbone=self.backbone)
            checkpoint.restore(CHECKPOINT).expect_partial()
            self.head = head(4, NUM_CLASSES)
            self.head.build((None, 8))
            self.loss = tf.keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none"
            )
            self.accuracy = tf.keras.metrics.SparseCategoricalAccuracy()

    def _replica_step(self, images, labels):
        with tf.GradientTape() as tape:
            features = self.backbone(images, training=self.backbone.trainable)
            logits = self.head(features)
            loss = tf.nn.compute_average_loss(
                self.loss(labels, logits), global_batch_size=GLOBAL_BATCH_SIZE
            )
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables))
        self.accuracy.update_state(labels, logits)
        return loss

    def train(self, learning_rate, epochs, train_backbone):
        """Returns the loss of each step, and the accuracy of each epoch."""
        self.backbone.trainable = train_backbone
        self.variables = self.backbone.trainable_variables + self.head.trainable_variables
        with self.strategy.scope():
            self.optimizer = tf.keras.optimizers.SGD(learning_rate, momentum=0.9)
            self.optimizer.build(self.variables)

        @tf.function
        def step(batch):
            losses = self.strategy.run(self._replica_step, args=batch)
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        dataset = tf.data.Dataset.from_tensor_slices(make_data(1, NUM_CLASSES))
        dataset = self.strategy.experimental_distribute_dataset(dataset.batch(GLOBAL_BATCH_SIZE))
        losses, accuracies = [], []
        for _ in range(epochs):
            losses.extend(float(step(batch)) for batch in dataset)
            accuracies.append(float(self.accuracy.result()))
            self.accuracy.reset_state()
        return losses, accuracies


def main():
    tuner = FineTuner(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    reader = tf.train.load_checkpoint(CHECKPOINT)
    restored = [float(np.linalg.norm(w)) for w in tuner.backbone.get_weights()]
    frozen_losses, frozen_accuracies = tuner.train(0.3, 2, train_backbone=False)
    unchanged = [float(np.linalg.norm(w)) for w in tuner.backbone.get_weights()]
    losses, accuracies = tuner.train(0.1, 3, train_backbone=True)
    return {
        "saved": len(reader.get_variable_to_shape_map()),
        "saves": int(reader.get_tensor("save_counter/.ATTRIBUTES/VARIABLE_VALUE")),
        "restored": restored,
        "unchanged": unchanged,
        "frozen_loss": frozen_losses,
        "frozen_accuracy": frozen_accuracies,
        "loss": losses,
        "accuracy": accuracies,
        "weights": [float(tf.norm(v)) for v in tuner.backbone.trainable_variables],
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
