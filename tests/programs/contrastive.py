"""Contrastive learning: negatives from all replicas, image summaries written in the step."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

LARGE = 1e9
IMAGE_SIZE = 8
BATCH_SIZE = 8
TEMPERATURE = 0.1
NUM_STEPS = 8
WIDTH = 16
PROJECTION = 8


def cross_replica_concat(tensor, context):
    """Gathers the rows of all replicas by a sum, so that gradients reach each of them."""
    if context is None or context.num_replicas_in_sync <= 1:
        return tensor
    num_replicas = context.num_replicas_in_sync
    expanded = tf.scatter_nd(
        indices=[[context.replica_id_in_sync_group]],
        updates=[tensor],
        shape=tf.concat([[num_replicas], tf.shape(tensor)], axis=0),
    )
    gathered = context.all_reduce(tf.distribute.ReduceOp.SUM, expanded)
    return tf.reshape(gathered, [-1] + list(gathered.shape[2:]))


def contrastive_loss(hidden, context):
    """Returns the loss of each image, and the logits and labels of its first view."""
    hidden = tf.math.l2_normalize(hidden, -1)
    hidden1, hidden2 = tf.split(hidden, 2, 0)
    batch_size = tf.shape(hidden1)[0]
    hidden1_large = cross_replica_concat(hidden1, context)
    hidden2_large = cross_replica_concat(hidden2, context)
    enlarged_batch_size = tf.shape(hidden1_large)[0]
    replica_id = tf.cast(tf.cast(context.replica_id_in_sync_group, tf.uint32), tf.int32)
    labels_idx = tf.range(batch_size) + replica_id * batch_size
    labels = tf.one_hot(labels_idx, enlarged_batch_size * 2)
    masks = tf.one_hot(labels_idx, enlarged_batch_size)

    logits_aa = tf.matmul(hidden1, hidden1_large, transpose_b=True) / TEMPERATURE - masks * LARGE
    logits_bb = tf.matmul(hidden2, hidden2_large, transpose_b=True) / TEMPERATURE - masks * LARGE
    logits_ab = tf.matmul(hidden1, hidden2_large, transpose_b=True) / TEMPERATURE
    logits_ba = tf.matmul(hidden2, hidden1_large, transpose_b=True) / TEMPERATURE
    loss_a = tf.nn.softmax_cross_entropy_with_logits(labels, tf.concat([logits_ab, logits_aa], 1))
    loss_b = tf.nn.softmax_cross_entropy_with_logits(labels, tf.concat([logits_ba, logits_bb], 1))
    return loss_a + loss_b, logits_ab, labels


class Encoder(tf.Module):
    """A convolution, pooled, and a projection head."""

    def __init__(self, name="encoder"):
        super().__init__(name=name)
        rng = np.random.default_rng(6)
        self.filters = tf.Variable(rng.normal(0.0, 0.3, (3, 3, 3, WIDTH)), dtype=tf.float32)
        self.scale = tf.Variable(tf.ones([WIDTH]))
        self.offset = tf.Variable(tf.zeros([WIDTH]))
        self.head = [
            tf.Variable(rng.normal(0.0, 0.4, (WIDTH, WIDTH)), dtype=tf.float32),
            tf.Variable(rng.normal(0.0, 0.4, (WIDTH, PROJECTION)), dtype=tf.float32),
        ]

    def __call__(self, images):
        x = tf.nn.conv2d(images, self.filters, strides=[1, 2, 2, 1], padding="SAME")
        context = tf.distribute.get_replica_context()
        mean, square = context.all_reduce(
            tf.distribute.ReduceOp.MEAN,
            [tf.reduce_mean(x, [0, 1, 2]), tf.reduce_mean(tf.square(x), [0, 1, 2])],
        )
        variance = square - tf.square(mean)
        x = tf.nn.relu((x - mean) * tf.math.rsqrt(variance + 1e-3) * self.scale + self.offset)
        x = tf.reduce_mean(x, axis=[1, 2])
        return tf.matmul(tf.nn.relu(tf.matmul(x, self.head[0])), self.head[1])


def make_views(image, shift):
    """Returns two views of an image, beside each other along the channels."""
    first = tf.image.adjust_brightness(tf.image.flip_left_right(image), 0.1)
    padded = tf.image.resize_with_crop_or_pad(image, IMAGE_SIZE + 2, IMAGE_SIZE + 2)
    second = tf.image.crop_to_bounding_box(padded, shift[0], shift[1], IMAGE_SIZE, IMAGE_SIZE)
    second = tf.image.adjust_contrast(second, 0.8)
    return tf.concat([first, second], axis=-1)


def make_dataset():
    rng = np.random.default_rng(12)
    images = rng.uniform(size=(32, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32)
    shifts = rng.integers(0, 3, size=(32, 2)).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((images, shifts))
    dataset = dataset.map(make_views, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    return dataset.repeat().batch(BATCH_SIZE, drop_remainder=True).prefetch(1)


def main():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    log_dir = tempfile.mkdtemp()
    summary_writer = tf.summary.create_file_writer(log_dir)
    with strategy.scope():
        model = Encoder()
        optimizer = tf.keras.optimizers.SGD(0.3, momentum=0.9, nesterov=True)
        optimizer.build(model.trainable_variables)
        accuracy = tf.keras.metrics.Mean("contrast_accuracy")
        step = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def single_step(views):
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            features = tf.concat(tf.split(views, 2, -1), 0)
            with tf.summary.record_if(tf.equal(step % 4, 0)):
                tf.summary.image("image", features[:, :, :, :3], step=step, max_outputs=2)
            per_example, logits, labels = contrastive_loss(model(features), context)
            loss = tf.reduce_mean(per_example)
            weight_decay = 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
            total = (loss + weight_decay) / strategy.num_replicas_in_sync
        found = tf.argmax(logits, 1)
        accuracy.update_state(tf.cast(tf.equal(tf.argmax(labels, 1), found), tf.float32))
        gradients = tape.gradient(total, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        tf.summary.scalar("loss", loss, step=step)
        step.assign_add(1)
        return loss

    @tf.function
    def train_step(iterator):
        with summary_writer.as_default():
            losses = strategy.run(single_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(make_dataset()))
    losses = [float(train_step(iterator)) for _ in range(NUM_STEPS)]
    summary_writer.flush()
    summary_writer.close()
    return {
        "loss": losses,
        "accuracy": float(accuracy.result()),
        "step": int(step.numpy()),
        "event_files": len([f for f in os.listdir(log_dir) if "tfevents" in f]),
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
