"""The stations of TensorFlow's tutorial "Custom training with tf.distribute.Strategy".

With ``import stratagem as tf``, and ``value_and_grad`` in place of a tape.
"""

import numpy as np
import pytest

import stratagem as tf

EPOCHS = 3
BATCH_SIZE_PER_REPLICA = 16


def images(count, seed):
    """Returns pictures of which bright columns say what they show, and what they show."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    pixels = rng.uniform(0, 0.3, (count, 8, 8, 1)).astype("float32")
    for picture, label in zip(pixels, labels, strict=True):
        picture[:, 2 * label : 2 * label + 2] += 0.7
    return pixels, labels


def create_model():
    regularizer = tf.keras.regularizers.L2(1e-5)
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(4, kernel_regularizer=regularizer),
        ]
    )


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.slow
def test_custom_training(strategy, tmp_path):
    tf.keras.utils.set_random_seed(1)
    global_batch_size = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync
    train_images, train_labels = images(8 * global_batch_size, seed=0)
    test_images, test_labels = images(2 * global_batch_size, seed=1)
    dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
    train_dataset = dataset.shuffle(len(train_images), seed=1).batch(global_batch_size)
    test_dataset = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(
        global_batch_size
    )
    train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
    test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)

    with strategy.scope():
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
        test_loss = tf.keras.metrics.Mean(name="test_loss")
        train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        model = create_model()
        optimizer = tf.keras.optimizers.Adam(learning_rate=0.01)
        optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)

    def compute_loss(labels, predictions, model_losses):
        per_example_loss = loss_object(labels, predictions)
        loss = tf.nn.compute_average_loss(per_example_loss)
        return loss + tf.nn.scale_regularization_loss(sum(model_losses))

    def train_step(inputs):
        images, labels = inputs

        def forward():
            predictions = model(images, training=True)
            return compute_loss(labels, predictions, model.losses), predictions

        (loss, predictions), gradients = tf.value_and_grad(
            forward, model.trainable_variables, has_aux=True
        )()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
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

    history = []
    for _ in range(EPOCHS):
        total_loss, num_batches = 0.0, 0
        for x in train_dist_dataset:
            total_loss += distributed_train_step(x)
            num_batches += 1
        for x in test_dist_dataset:
            distributed_test_step(x)
        saved = checkpoint.save(tmp_path / "ckpt")
        results = (total_loss / num_batches, train_accuracy, test_loss, test_accuracy)
        history.append([float(getattr(r, "result", lambda r=r: r)()) for r in results])
        for metric in (test_loss, train_accuracy, test_accuracy):
            metric.reset_state()
    assert num_batches == 8
    assert history[-1][0] < history[0][0] / 2
    assert history[-1][3] == 1.0
    assert int(optimizer.iterations) == EPOCHS * num_batches

    # Restored without a strategy.
    new_model = create_model()
    new_optimizer = tf.keras.optimizers.Adam()
    new_optimizer.build(new_model.trainable_variables)
    tf.train.Checkpoint(optimizer=new_optimizer, model=new_model).restore(saved)
    eval_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="eval_accuracy")

    @tf.function
    def eval_step(images, labels):
        eval_accuracy(labels, new_model(images, training=False))

    for pictures, labels in test_dataset:
        eval_step(pictures, labels)
    assert float(eval_accuracy.result()) == history[-1][3]
    assert int(new_optimizer.iterations) == int(optimizer.iterations)

    # Other ways to iterate: with an iterator, and inside a function.
    iterator = iter(train_dist_dataset)
    losses = [float(distributed_train_step(next(iterator))) for _ in range(2)]
    assert max(losses) < history[0][0]

    @tf.function
    def distributed_train_epoch(dataset):
        total = 0.0
        for x in dataset:
            per_replica = strategy.run(train_step, args=(x,))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)
        return total

    distributed_train_epoch(train_dist_dataset)
    assert int(optimizer.iterations) == (EPOCHS + 1) * num_batches + 2


def test_checkpoints_take_objects_that_are_not_built():
    tf.train.Checkpoint(optimizer=tf.keras.optimizers.Adam())
