"""A convolutional classifier in a loop of its own, as the custom training tutorial writes it."""

import json

import numpy as np
import tensorflow as tf

NUM_CLASSES = 4
IMAGE_SIZE = 8
BATCH_SIZE_PER_REPLICA = 8
EPOCHS = 3


def make_images(seed, num_images):
    """Returns images whose bright quadrant says which class they are of."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(NUM_CLASSES, size=num_images)
    images = rng.normal(0.0, 0.3, size=(num_images, IMAGE_SIZE, IMAGE_SIZE)).astype(np.float32)
    half = IMAGE_SIZE // 2
    for image, label in zip(images, labels):
        row, column = divmod(int(label), 2)
        image[row * half : (row + 1) * half, column * half : (column + 1) * half] += 1.0
    return images[..., np.newaxis], labels.astype(np.int64)


def create_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(IMAGE_SIZE, IMAGE_SIZE, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(NUM_CLASSES),
        ]
    )
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(0.0, 0.2, size=w.shape) for w in model.get_weights()])
    return model


def main():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    global_batch_size = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync

    train_images, train_labels = make_images(0, 72)  # the last batch is half full
    test_images, test_labels = make_images(1, 32)
    train_dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels)).batch(
        global_batch_size
    )
    test_dataset = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(
        global_batch_size
    )
    train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
    test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)

    with strategy.scope():
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )

        def compute_loss(labels, predictions, model_losses):
            per_example_loss = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=global_batch_size)
            if model_losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
            return loss

        test_loss = tf.keras.metrics.Mean(name="test_loss")
        train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        model = create_model()
        optimizer = tf.keras.optimizers.Adam(learning_rate=0.01)
        optimizer.build(model.trainable_variables)

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = compute_loss(labels, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(labels, predictions)
        return loss

    def test_step(inputs):
        images, labels = inputs
        predictions = model(images, training=False)
        test_loss.update_state(loss_object(labels, predictions))
        test_accuracy.update_state(labels, predictions)

    @tf.function
    def distributed_train_step(dataset_inputs):
        per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    @tf.function
    def distributed_test_step(dataset_inputs):
        return strategy.run(test_step, args=(dataset_inputs,))

    results = {"train_loss": [], "train_accuracy": [], "test_loss": [], "test_accuracy": []}
    for epoch in range(EPOCHS):
        total_loss = 0.0
        num_batches = 0
        for x in train_dist_dataset:
            total_loss += distributed_train_step(x)
            num_batches += 1
        train_loss = total_loss / num_batches

        for x in test_dist_dataset:
            distributed_test_step(x)

        template = "Epoch {}, Loss: {:.4f}, Accuracy: {:.1f}, Test Loss: {:.4f}"
        tf.get_logger().info(
            template.format(
                epoch + 1, train_loss, train_accuracy.result() * 100, test_loss.result()
            )
        )
        results["train_loss"].append(float(train_loss))
        results["train_accuracy"].append(float(train_accuracy.result()))
        results["test_loss"].append(float(test_loss.result()))
        results["test_accuracy"].append(float(test_accuracy.result()))

        test_loss.reset_state()
        train_accuracy.reset_state()
        test_accuracy.reset_state()
    return results


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
